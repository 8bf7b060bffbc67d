"""`intervalq doctor`."""
