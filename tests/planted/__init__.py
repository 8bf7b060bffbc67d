"""Bugs that are planted in the shard and the rules, so that the judges of the simulation must find them."""
