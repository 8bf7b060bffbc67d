"""`redis://` and its kin: Redis, Valkey, and clusters of them."""
