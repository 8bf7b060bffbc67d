"""Ledgers: the memory of which rows were called, and how that ended."""
