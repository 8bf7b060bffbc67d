"""The conformance suite of stores of durable tasks, divided by subject."""
