"""`redis://` and its variants: Redis, Valkey, and clusters of them."""
