"""The format of tasks as messages in stores/README.md: other programs insert and read by that text alone."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.aio.msg import Msg

from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Insert
from intervalq_stores.nats._task.message import _FIELDS, filter_of
from servers import Server

README = (Path(__file__).parents[2] / "stores" / "README.md").read_text()
STREAM = "intervalq-tasks"


class Raw:
    """A program without intervalq."""

    def __init__(self, client: Any, queue: str) -> None:
        self.client = client
        self.queue = queue

    async def ask(self, subject: str, body: object, **headers: str) -> Any:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body).encode()
        return json.loads((await self.client.request(subject, data, headers=more or None)).data)

    async def insert(self, id_: str, value: object, **meta: Any) -> None:
        headers = {"Iq_Task": json.dumps(meta)} if meta else {}
        subject = f"intervalq.tasks.w.{self.queue}.{id_}"
        answer = await self.ask(subject, value, Nats_Expected_Last_Subject_Sequence="0", **headers)
        assert answer.get("seq"), answer

    async def insert_with_key(self, key: str, id_: str, value: object) -> None:
        line = f"intervalq.tasks.*.{self.queue}.{key}.*"
        last = await self.ask(f"$JS.API.STREAM.MSG.GET.{STREAM}", {"last_by_subj": line})
        there = last["message"]["seq"] if "error" not in last else 0
        place = f"k.{self.queue}.{key}.{id_}" if there else f"w.{self.queue}.{key}.0"
        answer = await self.ask(
            f"intervalq.tasks.{place}", value, Iq_Task=json.dumps({"i": id_}),
            Nats_Expected_Last_Subject_Sequence=str(there), Nats_Expected_Last_Subject_Sequence_Subject=line,
        )  # fmt: skip
        assert answer.get("seq"), answer

    async def read(self, count: int) -> list[Msg]:
        """Read with the queue's consumer."""
        pull = await self.client.jetstream().pull_subscribe_bind(self.queue, STREAM)
        messages = await pull.fetch(count, timeout=10)
        for message in messages:
            await message.ack_sync()
        return list(messages)


async def test_a_raw_client_inserts_and_reads_by_the_text(nats_url: str) -> None:
    word = secrets.token_hex(4)
    client = await nats.connect(nats_url)
    raw, results = Raw(client, f"cars-{word}"), Raw(client, f"results-{word}")
    done: list[Any] = []
    async with Tasks(nats_url) as tasks:
        await tasks.queues()  # which creates the stream
        later = time.time_ns() // 1_000 + 200_000
        await raw.insert("one", {"color": "red"})
        await raw.insert("two", {"color": "blue"}, at=later, a=1, e="was broken")
        for number in range(3):
            await raw.insert_with_key("a=2Eb", f"k{number}", number)
        (two,) = await tasks.tasks(raw.queue, ids=["two"])
        assert (two.at, two.attempt, two.error) == (later / 1e6, 1, "was broken")

        @tasks.worker(raw.queue)
        async def work(claim: Claim) -> Insert:
            done.append((claim.id, claim.key, claim.value, claim.attempt))
            if len(done) == 5:
                tasks.stop()
            return tasks.new(results.queue, {"of": claim.id}, id=f"of {claim.id}")

        with anyio.fail_after(30):
            await tasks.run()
        keyed = [(id_, value) for id_, key, value, _ in done if key == "a.b"]
        assert keyed == [(f"k{number}", number) for number in range(3)]
        plain = sorted(one for one in done if one[1] is None)
        assert plain == [("one", None, {"color": "red"}, 1), ("two", None, {"color": "blue"}, 2)]
        messages = await results.read(5)
        # Tasks that run at the same time may end in another order than they began.
        assert sorted(json.loads(message.data)["of"] for message in messages) == sorted(
            id_ for id_, *_ in done
        )
        assert messages[0].subject == f"intervalq.tasks.w.{results.queue}.of=20{done[0][0]}"
        assert await tasks.queues(raw.queue, results.queue) == []
    await client.close()


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"ack_policy": "none", "deliver_subject": "_INBOX.ordered", "max_deliver": 1}, 10098),
        ({"ack_policy": "none"}, 10084),
        ({"ack_policy": "explicit"}, 10100),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, 10101),
    ],
)
async def test_a_reader_beside_the_workers_is_refused_as_the_text_says(
    nats_url: str, queue: str, config: dict[str, Any], refused: int
) -> None:
    client = await nats.connect(nats_url)
    async with Tasks(nats_url) as tasks:
        await tasks.insert(queue, 1)
        wanted = {"deliver_policy": "all", "filter_subject": filter_of(queue)} | config
        body = {"stream_name": STREAM, "config": wanted}
        error = (await Raw(client, queue).ask(f"$JS.API.CONSUMER.CREATE.{STREAM}", body))["error"]
    assert error["err_code"] == refused
    assert error["description"] in " ".join(README.split())
    assert f"{refused}" in README
    await client.close()


def test_the_text_names_every_field() -> None:
    section = README.partition("## Tasks on NATS, for other programs")[2]
    named = set(re.findall(r"`([a-z]+)`", section.partition("Of several messages")[0]))
    assert {short for short, *_ in _FIELDS} | {"i"} <= named


def test_the_example_of_inboxes_prints_what_it_says(
    own_nats: Callable[[], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (block for block in re.findall(r"```python\n(.*?)\n```", README, re.DOTALL) if "car1" in block)
    exec(code.replace("nats://127.0.0.1", own_nats().url), {"__name__": "example"})
    (reported,) = re.findall(r"# prints: (.*)", code)
    assert ", ".join(capsys.readouterr().out.splitlines()) == reported
