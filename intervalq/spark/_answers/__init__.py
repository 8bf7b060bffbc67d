"""Answers of calls: how a ledger keeps them, and how they are fitted to the columns of a schema."""
