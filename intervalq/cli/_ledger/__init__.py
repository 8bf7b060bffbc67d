"""`intervalq ledger`."""
