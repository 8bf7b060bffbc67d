"""The judges of simulated schedules: each compares what was observed with a promise."""
