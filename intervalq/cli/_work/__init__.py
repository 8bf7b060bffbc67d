"""`intervalq work`."""
