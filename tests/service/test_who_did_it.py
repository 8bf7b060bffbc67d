"""A service writes down who has changed what, whichever way the change comes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from intervalq._observe.actions import keeping, last_actions
from intervalq._wire.verbs import SwapSchedule
from intervalq.ledger import Ledger
from intervalq.ledger import rules as ledgers
from intervalq.ledger.store import open_ledger_store
from intervalq.schedules.rules import Record
from intervalq.service._access import ACTIONS
from intervalq.service._actions import Act
from intervalq.service._remote.acts import of_swap
from intervalq.tasks import Claim, Tasks
from service.serving import served
from service.test_remote_access import access_of, url_of

EVERYTHING = [(action, ["*"]) for action in ACTIONS]


async def test_changes_over_intervalq_urls_are_written_down_and_work_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = tmp_path / "access.toml"
    few = [("delete", ["mails"]), ("read", ["mails"])]
    access.write_text(access_of({"ann": EVERYTHING, "bob": [("read", ["mails", "ledger#run"])], "cy": few}))
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(tmp_path / "actions.jsonl"))
    store = f"sqlite://{tmp_path}/app.db"
    with keeping():
        async with served(store, access=str(access)) as addresses:
            url = url_of("ann", addresses.grpc or "")
            async with Tasks(url) as tasks:

                @tasks.worker("mails")
                async def work(claim: Claim[int]) -> None:
                    pass

                for number in range(6):
                    await tasks.insert("mails.dead" if number > 3 else "mails", number, id=f"m{number}")
                await tasks.cancel("m0", "gone")
                async with Tasks(url_of("cy", addresses.grpc or "")) as other:
                    await other.cancel("m1", "m4")  # of which it may not see the second
                [third] = await tasks.tasks(ids=["m2"])
                await tasks.modify(third.change(queue="later"), (await tasks.tasks(ids=["m4"]))[0].delete())
                [dead] = await tasks.tasks(ids=["m5"])
                await tasks.modify(dead.change(queue="mails"))
                claim = await tasks.claim("mails")
                await tasks.modify(claim.change(priority=1))
                await claim.ack()
                await tasks.run(until_empty=True)
                await tasks.schedule("nightly", "mails", 1, every="1d")
                await tasks.schedules.pause("nightly")
                await tasks.schedules.fire("nightly")
                await tasks.schedules.drop("nightly")
            ledger = open_ledger_store(url)
            await ledger.apply("run", ledgers.Record("s", 10**9, (ledgers.Ended("x", "1"),)))
            async with Ledger("run", ledger) as run:
                await run.cancel()
                await run.drop()
                await run.drop()
            async with httpx.AsyncClient(base_url=f"http://{addresses.http}/v1/") as client:
                rows = {}
                for name in ("ann", "bob"):
                    token = {"authorization": f"Bearer token of {name}"}
                    shown = (await client.get("overview", headers=token)).json()["actions"]["rows"]
                    rows[name] = [tuple(row["cells"][1:]) for row in reversed(shown)]
    done = [
        ("ann", "cancel", "tasks of mails", "1 task"),
        ("cy", "cancel", "tasks of mails", "1 task"),
        ("ann", "move", "tasks of mails to later", "1 task"),
        ("ann", "delete", "tasks of mails.dead", "1 task"),
        ("ann", "retry", "tasks of mails.dead", "1 task"),
        ("ann", "change", "schedule nightly", "done"),
        ("ann", "fire", "schedule nightly", "done"),
        ("ann", "drop", "schedule nightly", "done"),
        ("ann", "cancel", "ledger run", "done"),
        ("ann", "drop", "ledger run", "done"),
    ]
    assert rows["ann"] == done
    assert rows["bob"] == [*done[:3], *done[-2:]]
    assert [each[:4] for each in reversed(last_actions({store}))] == rows["ann"]


def test_a_schedules_record_says_what_was_done() -> None:
    record = Record(plan="daily", through=5, reported=5)
    text = record.to_text()

    def done(**changed: object) -> list[str]:
        after = Record(**{"plan": "daily", "through": 5, "reported": 5, **changed}).to_text()  # type: ignore[arg-type] # any field
        return [act.action for act in of_swap(SwapSchedule("s", text, after))]

    assert done() == done(through=9, fired=9, holder="h", running=True) == []  # it runs
    assert done(paused=True) == ["pause"]
    assert done(asked=6) == ["fire"]
    assert done(asked=5) == []
    assert done(plan="weekly") == ["change"]
    paused = Record(plan="daily", through=5, reported=5, paused=True).to_text()
    assert [act.action for act in of_swap(SwapSchedule("s", paused, text))] == ["resume"]
    assert [*of_swap(SwapSchedule("s", text, None))] == [Act("drop", "schedule", "s", "schedule#s")]
    assert [*of_swap(SwapSchedule("s", None, text))] == []  # by the first process that runs it
    assert [act.action for act in of_swap(SwapSchedule("s", "?", text))] == ["change"]
