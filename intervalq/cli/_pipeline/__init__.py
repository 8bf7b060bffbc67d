"""`intervalq pipeline`."""
