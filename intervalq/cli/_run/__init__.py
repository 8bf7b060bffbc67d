"""`intervalq run` and `exec`."""
