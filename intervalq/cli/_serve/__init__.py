"""`intervalq serve`."""
