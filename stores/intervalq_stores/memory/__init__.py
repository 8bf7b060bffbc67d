"""`memory://`: what one process keeps, and loses with it."""

from intervalq_stores.memory.queues import MemoryStore

__all__ = ["MemoryStore"]
