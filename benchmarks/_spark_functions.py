"""Functions of rows for the Spark benchmarks; created here so that they are pickled by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def no_op() -> Any:
    """A call that takes no time."""

    async def call(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"y": row["id"]}

    return call


def sleeper(seconds: float) -> Any:
    """A call that takes this many seconds."""

    async def call(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        import anyio

        await anyio.sleep(seconds)
        return {"y": row["id"]}

    return call


def caller(url: str) -> Any:
    """A call of the stand-in API."""

    async def call(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        async with ctx.http.get(f"{url}/rows/{row['id']}") as answer:
            answer.raise_for_status()
            return {"y": row["id"]}

    return call


def memory() -> Any:
    """A no-op that reports the memory of its process every 10,000 rows, in kB, and 0 for other rows."""
    seen = 0

    async def call(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        nonlocal seen
        seen += 1
        if seen % 10_000:
            return {"kb": 0}
        with open("/proc/self/statm") as file:
            return {"kb": int(file.read().split()[1]) * 4}

    return call


def plain(call: Any, most: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The same function without intervalq: gathered for each batch, with at most `most` calls in flight."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import asyncio

        import pyarrow as pa

        loop = asyncio.new_event_loop()

        async def all_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            room = asyncio.Semaphore(most)

            async def one(row: dict[str, Any]) -> dict[str, Any]:
                async with room:
                    answer: dict[str, Any] = await call(row, None)
                    return answer

            return await asyncio.gather(*map(one, rows))

        for batch in batches:
            answers = loop.run_until_complete(all_of(batch.to_pylist()))
            ys = pa.array([answer["y"] for answer in answers], pa.int64())
            yield pa.RecordBatch.from_arrays([*batch.columns, ys], names=[*batch.schema.names, "y"])
        loop.close()

    return run
