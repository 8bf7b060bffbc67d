"""`memory://`: data that one process keeps, and that is lost with it."""

from intervalq_stores.memory.queues import MemoryStore

__all__ = ["MemoryStore"]
