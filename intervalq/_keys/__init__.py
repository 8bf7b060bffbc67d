"""Keys under one rate: what their shards and handles need in addition to those of any queue."""
