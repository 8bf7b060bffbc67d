"""Ledgers: records of which rows were called, and how each call ended."""

from typing import TYPE_CHECKING

from intervalq._lazy import lazy_names

__all__ = ["Codec", "Ledger", "LedgerInfo", "LedgerRow", "ledgers"]

if TYPE_CHECKING:
    from intervalq._spec.codec import Codec
    from intervalq.ledger._ledger import Ledger, LedgerInfo, LedgerRow, ledgers
else:
    __getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "_ledger"))
