"""The session of a process: claims and settles tasks with few calls to the store."""
