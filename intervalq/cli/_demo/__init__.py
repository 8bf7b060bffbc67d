"""`intervalq demo`."""
