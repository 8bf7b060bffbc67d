"""The service: offers a store to clients in any language, through protocols that already have clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intervalq._lazy import lazy_names

__all__ = ["Addresses", "Tls", "serve"]

if TYPE_CHECKING:
    from intervalq.service._serve import Addresses, serve
    from intervalq.service._tls import Tls
else:
    __getattr__ = lazy_names(
        __name__,
        {"Addresses": "_serve", "Tls": "_tls", "serve": "_serve"},
        needs={"grpc", "grpc_health", "grpc_reflection", "google", "httpx", "starlette", "uvicorn"},
        what="intervalq.service",
        extra="service",
    )
