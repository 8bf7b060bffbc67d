"""The library of the transports: httpx, or httpx2 where only that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intervalq.errors import MissingExtra

if TYPE_CHECKING:
    import httpx
else:
    try:
        import httpx
    except ImportError as missing:
        try:
            import httpx2 as httpx  # its successor, with the same names
        except ImportError:
            raise MissingExtra("intervalq.integrations.httpx", "httpx") from missing

__all__ = ["httpx"]
