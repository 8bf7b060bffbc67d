"""Never run: the type checkers check that they see every signature as it was written."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypedDict, assert_type

from intervalq import IntervalQueue, Job, QueueState, Slot
from intervalq.schedules import ScheduleInfo
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq.sync import Schedules as BlockingSchedules
from intervalq.tasks import Cancelled, Claim, Modified, Pull, PullInfo, QueueStats, Task, Tasks

queue = IntervalQueue("typed", rate="10/s", store="memory://", lookahead=None)


@queue
async def fetch(path: str, *, timeout: float = 1.0) -> dict[str, int]:
    return {path: round(timeout)}


@queue
def plain(path: str) -> bytes:
    return path.encode()


@queue
def lines(path: str) -> Generator[int, str, bool]:
    yield len(path)
    return True


@queue
async def pages(path: str) -> AsyncGenerator[int, str]:
    yield len(path)


class Client:
    @queue
    async def get(self, path: str) -> int:
        return len(path)

    @classmethod
    @queue
    async def make(cls, path: str) -> int:
        return len(path)

    @staticmethod
    @queue
    def static(path: str) -> int:
        return len(path)


@queue(cost={"tokens": 9}, settle=lambda answer: {"tokens": len(answer)})
def settling(path: str) -> bytes:
    return path.encode()


async def use() -> None:
    assert_type(settling("/a"), bytes)
    assert_type(await fetch("/a", timeout=2), dict[str, int])
    assert_type(plain("/a"), bytes)
    assert_type(lines("/a"), Generator[int, str, bool])
    assert_type(pages("/a"), AsyncGenerator[int, str])
    assert_type(await Client().get("/a"), int)
    assert_type(await Client.make("/a"), int)
    assert_type(Client.static("/a"), int)

    async def call(number: int) -> str:
        return str(number)

    assert_type(await queue.run(call, 1, priority=1), str)
    assert_type(await queue.run(fetch, "/a"), dict[str, int])
    assert_type(await queue.run(lambda: fetch("/a", timeout=2)), dict[str, int])
    job = await queue.add(call, 1, priority=1, retries=2)
    assert_type(job, Job[str])
    assert_type(await job, str)
    assert_type(job.ticket, int | None)
    assert_type(job.due, float | None)
    async for result in queue.map(call, [1, 2], ordered=True):
        assert_type(result, str)
    async with queue.slot(cost=2) as slot:
        assert_type(slot, Slot)
        slot.settle(tokens=1)
    settled = await queue.add(call, 1, cost={"tokens": 9}, settle=lambda answer: {"tokens": len(answer)})
    assert_type(settled, Job[str])
    blocking = BlockingQueue("q")
    assert_type(
        blocking.run(lambda: "a", cost={"tokens": 9}, settle=lambda answer: {"tokens": len(answer)}), str
    )
    assert_type(blocking.run(plain, "/a"), bytes)
    assert_type(blocking.add(plain, "/a", settle=lambda answer: {"tokens": len(answer)}), Future[bytes])
    assert_type(await queue.inspect(), QueueState)
    assert_type(queue["key"], IntervalQueue)
    handler: Callable[[str], Coroutine[Any, Any, int]] = Client().get
    await handler("/a")

    await fetch(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await fetch("/a", timeout="2")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    plain()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


tasks = Tasks("memory://")


@tasks.worker("q", queue=queue, concurrency=2, timeout="5s")
async def work(task: Task, *, careful: bool = True) -> int:
    return len(task.id) + careful


@tasks.worker("q")
def plain_work(task: Claim) -> None:
    assert_type(task.attempt, int)


class Car(TypedDict):
    paint: str


@tasks.worker("cars")
async def paint(claim: Claim[Car]) -> None:
    assert_type(claim.value, Car)
    assert_type(claim.value["paint"], str)
    claim.value["wheels"]  # type: ignore[typeddict-item] # pyright: ignore[reportGeneralTypeIssues]


async def use_typed_claims() -> None:
    car: Claim[Car] = await tasks.claim("cars")
    await paint(car)
    look: Task[Car] = car
    assert_type(look.value, Car)
    number: Claim[int] = await tasks.claim("numbers")
    await paint(number)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def use_tasks() -> None:
    claim = await tasks.claim("q", timeout=1)
    assert_type(claim, Claim)
    assert_type(claim.value, Any)
    assert_type(await work(claim, careful=False), int)  # as it was written
    plain_work(claim)
    assert_type(await tasks.try_claim("q"), Claim | None)
    assert_type(await tasks.insert("q", {"a": [1, None]}, key="k"), str)
    assert_type(await tasks.put("q", range(3)), int)
    assert_type(await tasks.modify(claim.change(1), tasks.new("q", 1)), Modified)
    assert_type(await tasks.tasks("q"), list[Task])
    assert_type(await tasks.queues(), list[QueueStats])
    pull = tasks.pull("q", name="me")
    assert_type(pull, Pull)
    assert_type(await pull.fetch(3, "1s"), list[Claim])
    assert_type(await pull.info(), PullInfo)
    async with claim.commit("serializable") as connection:
        assert_type(connection, Any)
    await claim.in_progress(progress=0.5, note="half", checkpoint={"row": 5})
    assert_type(claim.progress, float | None)
    assert_type(claim.note, str)
    assert_type(claim.checkpoint, Any)
    assert_type(await tasks.cancel("a", "b"), Cancelled)
    await claim.snooze("5m")
    await claim.ack(tasks.new("q", 1), claim.depend())

    await work(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await work(claim, careful="no")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await tasks.insert(1, 1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await claim.ack(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def use_blocking() -> None:
    blocking = BlockingQueue("typed", interval=1)
    with blocking.slot() as slot:
        assert_type(slot, Slot)
    assert_type(blocking.run(lambda: 4), int)

    @blocking
    def paced(number: int) -> str:
        return str(number)

    assert_type(paced(1), str)
    assert_type(list(blocking.map(paced, [1, 2])), list[str])
    assert_type(BlockingSchedules("memory://").inspect_all(), list[ScheduleInfo])
