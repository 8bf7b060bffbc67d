"""Exclusive locks: held while a context is open, by the commands of the store or by its own kind of locks."""
