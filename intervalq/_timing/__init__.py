"""Clocks, timers, estimates and waits: everything that knows about time or event loops."""
