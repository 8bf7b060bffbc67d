"""Keys under one rate: what their shards and handles need beside those of any queue."""
