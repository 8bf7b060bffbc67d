"""`intervalq tasks`."""
