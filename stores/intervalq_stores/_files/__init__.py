"""What the stores that are files have in common."""
