"""The function that the example calls for each row."""

from __future__ import annotations

from typing import Any

from intervalq.spark import CallContext


async def ask(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
    """Ask the API about a package. A rejection is raised: the queue pauses, and the row is called again."""
    async with ctx.http.get(
        row["url"], headers={"Idempotency-Key": ctx.key}, raise_for_status=True
    ) as answer:
        body = await answer.json()
    return {"status": answer.status, "megabytes": body["megabytes"]}
