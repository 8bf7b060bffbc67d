"""Ledgers: records of which rows were called, and how each call ended."""

from intervalq._spec.codec import Codec
from intervalq.ledger._ledger import Ledger, LedgerInfo, LedgerRow, ledgers

__all__ = ["Codec", "Ledger", "LedgerInfo", "LedgerRow", "ledgers"]
