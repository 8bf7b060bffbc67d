"""The conformance suite of stores of ledgers."""
