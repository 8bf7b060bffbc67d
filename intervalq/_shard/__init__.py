"""One event loop's part of a queue: its waiting jobs, its slots, and its requests to the store."""
