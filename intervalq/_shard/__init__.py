"""One event loop's share of a queue: who waits, which slots are granted, and what to ask the store."""
