"""What really happened: the audit of an execution log, and its report."""
