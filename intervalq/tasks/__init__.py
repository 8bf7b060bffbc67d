"""Durable tasks: claimed, renewed and committed exactly once, started at the paced rate."""
