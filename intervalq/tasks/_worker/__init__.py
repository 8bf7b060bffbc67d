"""Functions that run tasks."""
