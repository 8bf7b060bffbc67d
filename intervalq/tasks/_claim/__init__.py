"""A task, and a claim on one."""
