"""Who may do what over `intervalq://`: every command, by callers with one action each."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from intervalq.errors import DependencyError, StoreError, Unauthorized
from intervalq.keyed import Common
from intervalq.ledger import rules as ledgers
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Advance, Configure, Drop, Finish, Hold, Inspect, Reclaim, Resume, Settings
from intervalq.service._access import ACTIONS
from intervalq.store import Pairing, Waking, open_store, scheduling
from intervalq.tasks import Claim, Tasks
from intervalq.tasks import rules as tasks
from intervalq.tasks._schedule.record import QUEUE
from intervalq.tasks.store import Waking as TasksWaking
from intervalq.tasks.store import open_task_store
from service.serving import serving

PACED: Final = Settings(1_000)
Try = Callable[[str], Awaitable[object]]


def queue(command: Any, name: str = "mine") -> Try:
    async def attempt(url: str) -> object:
        store = open_store(url)
        try:
            return await store.apply(name, command)
        finally:
            await store.aclose()

    return attempt


def keyed(url: str) -> Awaitable[object]:
    async def attempt() -> object:
        store = open_store(url)
        assert isinstance(store, Pairing)
        try:
            known = Common(record="mine", settings=PACED, own_pace=False, nonce="n")
            return await store.apply_keyed("mine:k", Advance(settings=PACED, nonce="n"), known)
        finally:
            await store.aclose()

    return attempt()


def heard(url: str) -> Awaitable[object]:
    async def attempt() -> object:
        store = open_store(url)
        assert isinstance(store, Waking)
        try:
            async with store.wakeups("mine"):
                return None
        finally:
            await store.aclose()

    return attempt()


def task(*commands: Any) -> Try:
    async def attempt(url: str) -> object:
        store = open_task_store(url)
        try:
            for command in commands:
                answer = await store.apply(command)
            return answer
        finally:
            await store.aclose()

    return attempt


def ledger(command: Any) -> Try:
    async def attempt(url: str) -> object:
        store = open_ledger_store(url)
        try:
            return await store.apply("mine", command)
        finally:
            await store.aclose()

    return attempt


def schedule(*swap: str | None) -> Try:
    async def attempt(url: str) -> object:
        store = open_store(url)
        try:
            if swap:
                return await scheduling(store).swap_schedule("mine", *swap)
            return await scheduling(store).read_schedules(["mine"])
        finally:
            await store.aclose()

    return attempt


BEGIN: Final = tasks.Begin(tasks.Session("s", expiry=10**9))
LOOK: Final = {"read", "pace"}
TRIES: Final[list[tuple[str, Try, set[str]]]] = [
    ("advance", queue(Advance(settings=PACED, nonce="n")), {"pace"}),
    ("finish", queue(Finish(generation="n")), {"pace"}),
    ("cool down", queue(Hold(length=1)), {"pace"}),
    ("a key", queue(Advance(settings=PACED, nonce="n"), "mine:k"), {"pace"}),
    ("a key under one rate", keyed, {"pace"}),
    ("listen", heard, {"pace"}),
    ("look", queue(Inspect()), LOOK),
    ("pause", queue(Hold()), {"administer"}),
    ("resume", queue(Resume()), {"administer"}),
    ("configure", queue(Configure(burst=1)), {"administer"}),
    ("reclaim", queue(Reclaim()), {"administer"}),
    ("drop", queue(Drop()), {"administer"}),
    ("insert", task(tasks.Modify(inserts=(tasks.Insert("mine", "1", "new", skip=True),))), {"insert"}),
    ("change", task(tasks.Modify(changes=(tasks.Change("change", 0),))), {"change"}),
    ("delete", task(tasks.Modify(deletes=(tasks.Delete("delete", 0),))), {"delete"}),
    ("depend", task(tasks.Modify(depends=(tasks.Depend("there", 0),))), {"read"}),
    ("force", task(tasks.Modify(changes=(tasks.Change("there", 7),), force=True)), set()),  # two actions
    ("claim", task(BEGIN, tasks.Work("s", queues=("mine",), limit=0)), {"claim"}),
    ("select", task(tasks.Select(queue="mine")), {"read"}),
    ("outcomes", task(tasks.Outcomes(queue="mine")), {"read"}),
    ("lock", task(tasks.Acquire("mine", "me", 1)), {"claim"}),
    ("unlock", task(tasks.Release("mine", "me")), {"claim"}),
    ("claim rows", ledger(ledgers.Claim("s", 10**9, ("a",))), {"claim"}),
    ("record", ledger(ledgers.Record("s", 10**9, (ledgers.Ended("a", "1"),))), {"claim"}),
    ("page", ledger(ledgers.Look()), {"read"}),
    ("count", ledger(ledgers.Count()), {"read"}),
    ("forget", ledger(ledgers.Forget(("a",), ("done",))), {"delete"}),
    ("cancel a run", ledger(ledgers.Cancel()), {"administer"}),
    ("drop a ledger", ledger(ledgers.Drop()), {"administer"}),
    ("schedules", schedule(), {"read"}),
    ("new schedule", schedule(None, "1"), {"insert"}),
    ("other schedule", schedule("1", "2"), {"change"}),
    ("no schedule", schedule("2", None), {"delete"}),
]


def access_of(rules: dict[str, list[tuple[str, list[str]]]]) -> str:
    text = ""
    for name, allowed in rules.items():
        digest = hashlib.sha256(f"token of {name}".encode()).hexdigest()
        given = ", ".join(f'{{ queues = {queues!r}, actions = ["{action}"] }}' for action, queues in allowed)
        text += f'[{name}]\ntoken_sha256 = "{digest}"\nallow = [{given}]\n'.replace("'", '"')
    return text


def url_of(name: str, address: str) -> str:
    return f"intervalq://token%20of%20{name}@{address}"


async def test_every_command_needs_its_action_and_no_other(tmp_path: Path) -> None:
    """Callers have one action each; a caller with all actions elsewhere may do nothing here."""
    access = tmp_path / "access.toml"
    names = ["mine", "ledger#mine", "schedule#mine", "lock#mine"]
    elsewhere = [(action, ["mine-too", "Mine", "ledger#other", "schedule#other"]) for action in ACTIONS]
    access.write_text(access_of({action: [(action, names)] for action in ACTIONS} | {"elsewhere": elsewhere}))
    async with serving(f"memory://{tmp_path}") as address:
        ids = [*ACTIONS, "there"]
        await task(tasks.Modify(inserts=tuple(tasks.Insert("mine", "1", id_) for id_ in ids)))(
            f"intervalq://{address}"
        )
    async with serving(f"memory://{tmp_path}", access=str(access)) as address:
        for what, attempt, needed in TRIES:
            for name in (*ACTIONS, "elsewhere", "nobody"):
                try:
                    await attempt(url_of(name, address))
                    is_done = True
                except (Unauthorized, DependencyError):  # a task that the caller may not read is missing
                    is_done = False
                assert is_done == (name in needed), (what, name)


async def test_lists_show_what_the_caller_may_read(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(
        access_of({"ann": [("read", ["a*", "ledger#a*", "schedule#a*"])], "bob": [("claim", ["a"])]})
    )
    async with serving(f"memory://{tmp_path}") as address:
        url = f"intervalq://{address}"
        for name in ("a1", "b1"):
            await queue(Advance(settings=PACED, nonce="n"), name)(url)
            await task(tasks.Modify(inserts=(tasks.Insert(name, "1", name),)))(url)
            rows, texts = open_ledger_store(url), open_store(url)
            await rows.apply(name, ledgers.Beat("s", 10**9))
            await scheduling(texts).swap_schedule(name, None, "1")
            await rows.aclose()
            await texts.aclose()
    async with serving(f"memory://{tmp_path}", access=str(access)) as address:
        for name, seen in (("ann", ["a1"]), ("bob", [])):
            url = url_of(name, address)
            store, rows = open_store(url), open_ledger_store(url)
            assert await store.names() == seen
            assert [*(await scheduling(store).read_schedules()).texts] == seen
            assert await rows.names() == seen
            found: Any = await task(tasks.Count())(url)
            assert [each.name for each in found] == seen
            rows_seen: Any = await task(tasks.Select(ids=("a1", "b1")))(url)
            assert [row.id for row in rows_seen] == seen
            cancelled: Any = await task(tasks.Cancel(("b1",)))(url)
            assert cancelled.removed == ()
            await store.aclose()
            await rows.aclose()


async def test_sessions_are_their_callers_own(tmp_path: Path) -> None:
    """Two callers use the same id of a session; neither settles, hears or ends what the other has claimed."""
    access = tmp_path / "access.toml"
    everything = [(action, ["q"]) for action in ("claim", "insert", "delete", "change", "read")]
    access.write_text(access_of({"ann": everything, "bob": everything}))
    async with serving(f"memory://{tmp_path}", access=str(access)) as address:
        ann, bob = (open_task_store(url_of(name, address)) for name in ("ann", "bob"))
        await ann.apply(tasks.Modify(inserts=(tasks.Insert("q", "1", "t"),)))
        for store in (ann, bob):
            await store.apply(BEGIN)
        (row,) = (await ann.apply(tasks.Work("s", queues=("q",), limit=1))).claimed
        assert row.session == "s"
        (seen,) = await bob.apply(tasks.Select(queue="q"))
        assert seen.session == "ann#s"
        for session in ("s", "ann#s", "bob#ann#s"):
            settled = tasks.Work(session, (tasks.Delete("t", row.version),))
            assert (await bob.apply(settled)).lost == ("t",) or not (await bob.apply(settled)).alive
            with pytest.raises(DependencyError):
                await bob.apply(tasks.Modify(session, deletes=(tasks.Delete("t", row.version),)))
            await bob.apply(tasks.End(session))
        assert (await ann.apply(tasks.Beat("s"))).claim_count == 1
        assert isinstance(bob, TasksWaking)
        with pytest.raises(Unauthorized):
            await bob.apply(tasks.Sessions())
        assert not (await bob.apply(tasks.Beat(""))).alive  # as changes of schedules do it
        with pytest.raises(Unauthorized, match="clock"):
            await bob.apply(tasks.Beat("s"), 1)
        assert (await ann.apply(tasks.Work("s", (tasks.Delete("t", row.version),)))).lost == ()
        for store in (ann, bob):
            await store.aclose()


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ((), "keeps no durable schedules going"),
        (("claim",), "keeps no durable schedules going"),
        (("claim", "change"), "schedule/s is not kept going by this process"),
    ],
)
async def test_workers_that_may_not_keep_schedules_work_on(
    rights: tuple[str, ...], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access, done = tmp_path / "access.toml", list[str]()
    everything = [(action, ["*"]) for action in ACTIONS]
    mine = [("read", ["*"]), *((action, ["q"]) for action in ("claim", "delete", "change"))]
    mine += [(action, [QUEUE]) for action in rights]
    access.write_text(access_of({"all": everything, "ann": mine}))
    async with (
        serving(f"memory://{tmp_path}", access=str(access)) as address,
        Tasks(url_of("all", address)) as all_,
        Tasks(url_of("ann", address)) as ann,
    ):
        await all_.schedule("s", "out", every="50ms")
        await all_.insert("q", 1, id="t")

        @ann.worker("q")
        async def work(task: Claim[object]) -> None:
            while said not in caplog.text:  # nothing tells of it
                await anyio.sleep(0.01)
            done.append(task.id)
            ann.stop()

        with anyio.fail_after(30):
            await ann.run()
        assert not await all_.tasks("out")
    assert done == ["t"]
    assert caplog.text.count(said) == 1


async def test_a_lock_that_is_released_wakes_other_callers(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(access_of({name: [("claim", ["lock#x"])] for name in ("ann", "bob")}))
    async with serving(f"memory://{tmp_path}", access=str(access)) as address:
        ann, bob = (open_task_store(url_of(name, address)) for name in ("ann", "bob"))
        assert (await ann.apply(tasks.Acquire("x", "me", 10**9))).fence
        assert not (await bob.apply(tasks.Acquire("x", "me too", 10**9))).fence
        assert isinstance(bob, TasksWaking)
        with anyio.fail_after(20):
            async with bob.wakeups(tasks.Release("x", "me").waiters) as woken:
                assert await ann.apply(tasks.Release("x", "me"))
                await woken()
        with pytest.raises(Unauthorized):
            async with bob.wakeups(tasks.Release("y", "me").waiters):
                pass
        for store in (ann, bob):
            await store.aclose()


async def test_nobody_but_known_callers_is_answered(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(access_of({"ann": [("claim", ["*"])]}))
    async with serving(f"memory://{tmp_path}", access=str(access)) as address:
        for login in ("", "wrong@", "token%20of%20ann2@"):
            with pytest.raises(StoreError, match="valid token") as error:
                await queue(Inspect())(f"intervalq://{login}{address}")
            assert isinstance(error.value, Unauthorized)
            with pytest.raises(Unauthorized):
                await task(tasks.Select())(f"intervalq://{login}{address}")
