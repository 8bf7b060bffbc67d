"""Bugs planted in the shard and the rules, which the judges of the simulation must find."""
