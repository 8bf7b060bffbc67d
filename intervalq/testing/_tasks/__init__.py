"""The conformance suite of stores of durable tasks, by what it shows."""
