"""Ledgers: the memory of which rows were called, and how that ended."""

from intervalq.ledger._ledger import Ledger, LedgerInfo, LedgerRow, ledgers

__all__ = ["Ledger", "LedgerInfo", "LedgerRow", "ledgers"]
