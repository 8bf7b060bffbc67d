"""Keys of queues: their names in a store, and what shards and handles need for keys under one rate."""
