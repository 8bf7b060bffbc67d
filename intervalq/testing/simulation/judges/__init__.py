"""The judges of simulated schedules: each holds what was observed against a promise."""
