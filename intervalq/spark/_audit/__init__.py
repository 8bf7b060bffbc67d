"""The audit of an execution log, and its report."""
