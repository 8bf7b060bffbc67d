"""MapReduce counts every word once, over any store, though a process claims tasks and never does them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

import mapreduce
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Begin, Session, Work
from intervalq.tasks.store import open_task_store
from mapreduce import Count, Names

VOCABULARY = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")


def documents(number: int, chance: random.Random) -> tuple[list[str], Counter[str]]:
    """Texts of a thousand words, ten different ones, and how often each occurs in total."""
    texts = [" ".join(chance.choices(VOCABULARY, k=1000)) for _ in range(number)]
    return texts, Counter(" ".join(texts).split())


def check(sums: list[dict[str, int]], histogram: Counter[str], reducers: int) -> None:
    assert 1 <= len(sums) <= reducers
    assert all(list(each) == sorted(each) for each in sums)
    assert len({word for each in sums for word in each}) == sum(map(len, sums)), "a word is in two shards"
    assert mapreduce.added(sums) == histogram


@pytest.mark.parametrize("seed", range(8))
async def test_in_one_process(seed: int) -> None:
    chance = random.Random(seed)
    texts, histogram = documents(chance.randint(1, 60), chance)
    mappers, reducers = chance.randint(1, 5), chance.randint(1, 5)
    url = f"memory://mapreduce-{os.urandom(8).hex()}"
    names = Names("mr", reducers)
    taken = 0

    async def chaos() -> None:
        """Sessions that claim something, and then behave as if their process had been killed."""
        nonlocal taken
        store = open_task_store(url)
        for turn in range(5):
            session = f"chaos-{turn}"
            await store.apply(Begin(Session(session, expiry=100_000)))
            for queue in (names.documents, *names.shards):
                worked = await store.apply(Work(session, queues=(queue,), limit=2))
                taken += len(worked.claimed)
            await anyio.sleep(0.02)  # the others progress meanwhile; how far doesn't matter

    handles = [Tasks(url, expiry=1.0) for _ in range(mappers + reducers)]
    await mapreduce.insert_documents(handles[0], names, texts)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await chaos()
            group.start_soon(chaos)
            for handle in handles[:mappers]:
                group.start_soon(mapreduce.map_documents, handle, names)
            for shard, handle in enumerate(handles[mappers:]):
                group.start_soon(mapreduce.reduce_shard, handle, names, shard)
    assert taken
    check(await mapreduce.take_output(handles[0], names), histogram, reducers)
    assert await handles[0].queues() == []
    for handle in handles:
        await handle.aclose()


async def count_over_processes(url: str, chance: random.Random) -> None:
    texts, histogram = documents(chance.randint(20, 60), chance)
    mappers, reducers = chance.randint(1, 3), chance.randint(1, 3)
    names = Names(f"mr-{os.urandom(8).hex()}", reducers)
    count = Count(url, names, mappers=mappers, chaos=True)
    with anyio.fail_after(100):
        sums = await count.run(texts)
    assert count.kills
    check(sums, histogram, reducers)
    async with Tasks(url) as handle:
        assert await handle.queues(*names.every) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", range(2))
async def test_over_processes_with_sqlite(tmp_path: Path, seed: int, anyio_backend: str) -> None:
    await count_over_processes(f"sqlite://{tmp_path}/tasks.db", random.Random(seed))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", range(2))
async def test_over_processes_with_postgres(postgres_url: str, seed: int, anyio_backend: str) -> None:
    await count_over_processes(postgres_url, random.Random(seed))


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, mapreduce.__file__, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_counts_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One fish, two fish.\n" * 10_000)
    (tmp_path / "b.txt").write_text("red fish; blue FISH")
    ran = run("--mappers", "1", "--reducers", "2", tmp_path / "a.txt", tmp_path / "b.txt")
    assert ran.returncode == 0, ran
    first, *_, last = ran.stdout.splitlines()
    assert first.split() == ["20002", "fish"]
    assert "40004 words, 5 different, in 2 texts" in ran.stdout
    assert last == "the same as one process counts"


def test_a_wrong_result_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(self: Count, texts: list[str]) -> list[dict[str, int]]:
        return [{"fish": 1}]

    monkeypatch.setattr(Count, "run", wrong)
    (tmp_path / "a.txt").write_text("fish fish")
    assert mapreduce.main([str(tmp_path / "a.txt")]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-file"], "No such file"),
        (["--store", "memory://"], "can't share tasks in memory"),
        (["--store", "nowhere://x"], "no store of durable tasks is registered"),
        (["--mappers", "0"], "from 1 to 64"),
        (["--name", "a  b"], "is not a queue name"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_long_texts_are_cut_between_words() -> None:
    text = "some words " * 20_000
    parts = mapreduce.pieces(text)
    assert "".join(parts) == text
    assert sum(map(mapreduce.words, parts), Counter()) == mapreduce.words(text)
    assert len(parts) > 3
    assert "".join(mapreduce.pieces("x" * 120_000)) == "x" * 120_000
