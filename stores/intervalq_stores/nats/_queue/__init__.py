"""Queues as entries of a log."""
