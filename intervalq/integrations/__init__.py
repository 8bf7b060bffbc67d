"""Queues built into HTTP clients: `.httpx` and `.openai`, `.aiohttp` and `.requests`, with extras."""
