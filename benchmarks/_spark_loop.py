"""A plain loop that calls the stand-in at a rate, for comparison: `python _spark_loop.py URL RATE CALLS`.

Each call begins when its time has come, whatever the others do; a time that has passed isn't waited for.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp


async def _main(url: str, rate: float, calls: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def call(number: int) -> None:
            async with http.get(f"{url}/rows/{number}") as answer:
                await answer.read()

        async with asyncio.TaskGroup() as group:
            began = time.monotonic()
            for number in range(calls):
                await asyncio.sleep(began + number / rate - time.monotonic())
                group.create_task(call(number))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
