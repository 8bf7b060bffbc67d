"""The page of a service: in a real browser, and what it may read and change."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio.lowlevel
import httpx
import pytest

import screens
from browser import DESKTOP, OVERFLOW, PHONE, Page, chromium
from intervalq import IntervalQueue
from intervalq._watch import reader, rows
from intervalq._watch.reader import Reader
from intervalq.tasks import Tasks
from service.serving import served
from service.test_remote_access import access_of


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[str]:
    url = f"sqlite://{tmp_path}/state.db"
    async with (
        screens.world(url) as work,
        screens.serving(url, logs=[screens.starts_log(tmp_path)]) as address,
    ):
        async with httpx.AsyncClient() as client:
            await client.get(f"{address}v1/overview")
        await work()
        yield address


async def test_in_a_browser(tmp_path: Path) -> None:
    """One browser: what it shows, on a phone, in the dark, and what its buttons do to the store."""
    url, log = f"sqlite://{tmp_path}/state.db", screens.starts_log(tmp_path)
    async with (
        screens.world(url) as work,
        screens.serving(url, access=screens.access_file(tmp_path), logs=[log]) as address,
        chromium(tmp_path / "profile") as page,
    ):
        await work()
        await page.open(f"{address}#api")
        await page.until("document.querySelector('#about').textContent.includes('needs a token')")
        assert await page.see(f"({OVERFLOW})()") == []
        await screens.sign_in(page, "look")
        assert await page.see("document.querySelectorAll('main button:not([data-of^=Show])').length") == 1
        await screens.show_tasks(page, "mails.dead")
        assert await page.see("document.querySelectorAll('#of .task').length") == 3
        inputs = "[...document.querySelectorAll('#acts button, #of input')].filter((one) => one.offsetParent)"
        assert await page.see(f"{inputs}.map((one) => one.id)") == ["filter"]
        await screens.sign_in(page, "all")
        await page.until("document.querySelectorAll('.chart').length > 1")  # rates, and the histogram
        seen = await page.see("document.documentElement.outerHTML")
        assert screens.labels(seen) == screens.kept("page.png"), "run `python tests/screens.py page`"
        body = seen.partition("</style>")[2].partition("<script>")[0]
        for text in ("<b>api</b>", "<b>mail</b>", "paused", "nightly", "inserts into reports", "as of"):
            assert text in body
        assert "<b>llm:&lt;script&gt;eve&lt;/script&gt;</b>" in body
        assert re.search(r'<details class="queue" open=""><summary><b>api</b>', body)
        assert "worker-2:4243:1: 3 late" in body
        assert await page.see("document.querySelectorAll('.chart rect').length") == 41

        queue = IntervalQueue("api", store=url)
        pause = "[...document.querySelectorAll('button')].find((one) => one.dataset.of === 'Pause api')"
        for verb, after in (("Pause", "Resume"), ("Resume", "Pause")):
            assert await page.see(f"{pause}.textContent") == verb
            await page.click(pause)
            await page.until(f"{pause}.textContent === '{after}'")
            assert (await queue.inspect()).is_held is (verb == "Pause")
            seen = await page.see("document.querySelector('#queues').textContent")
            assert bool(re.search("held byall, .* ago", seen)) is (verb == "Pause")
            assert await page.see(f"document.activeElement === {pause}")
        await weighed(page, url)
        async with Tasks(url) as tasks:
            of_schedule = "document.querySelectorAll('#schedules button')"
            for place, is_paused in ((0, True), (0, False), (1, False)):
                await page.click(f"{of_schedule}[{place}]")
                await page.until(f"{of_schedule}[0].textContent === '{'Resume' if is_paused else 'Pause'}'")
                [info] = await tasks.schedules.inspect_all()
                assert info.paused is is_paused
            asked = ["Pause api", "Resume api", "Pause nightly", "Resume nightly", "Run now nightly"]
            assert page.asked == [f"{each}, for all processes?" for each in asked]

        await tasks_in_bulk(page, url)
        for width in (PHONE, DESKTOP):
            for dark in (False, True):
                await page.open(f"{address}#api", width=width, dark=dark)
                await page.until("document.querySelectorAll('.chart').length > 1")
                assert await page.see(f"({OVERFLOW})()") == []
                assert await page.see("getComputedStyle(document.body).backgroundColor") == (
                    "rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)"
                )


async def weighed(page: Page, url: str) -> None:
    """The weight of a key is changed for all processes."""
    ann = IntervalQueue("turns", rate="1000/s", each="shared", store=url)["ann"]
    async with ann.slot():
        pass
    button = "[...document.querySelectorAll('button')].find((one) => one.dataset.of === 'Weight turns:ann')"
    await page.until(f"{button} !== undefined")
    before = len(page.asked)
    for page.typed in ("", "1001", "3"):  # nothing is sent, refused, done
        await page.see(f"{button}.click()")
    await page.until("document.querySelector('#queues').textContent.includes('3, for all processes')")
    assert (await ann.inspect()).weight == 3
    asked, page.asked = page.asked[before:], page.asked[:before]
    assert [each.partition(" of ")[0] for each in sorted(asked)] == [
        *("Starts", "Starts", "Starts"),
        "weight=1001 doesn't fit its schema: see /v1/openapi.json",
    ]


async def tasks_in_bulk(page: Page, url: str) -> None:
    """Dead tasks are looked at, chosen, filtered, put back, moved, cancelled and deleted."""

    async def click(change: str) -> str:
        """Click on a change; returns the answer."""
        before = len(page.asked)
        await page.see("document.querySelector('#told').textContent = ''")
        await page.click(f"document.querySelector('[data-of=\"{change} tasks\"]')")
        await page.until("document.querySelector('#told').textContent !== ''")
        said: str = await page.see("document.querySelector('#told').textContent")
        assert len(page.asked) - before == (not said.endswith(("first.", "of a queue.")))
        return said

    await screens.show_tasks(page, "mails.dead")
    lines = "[...document.querySelectorAll('#of .task')]"
    assert await page.see(f"{lines}.length") == 3
    await page.click(f"{lines}[1].querySelector('b')")
    await page.until("document.querySelector('dd.value') !== null")
    opened = await page.see(f"{lines}[1].textContent")
    assert "SMTPError: try 2" in opened
    assert re.search(r"attempt 2failed \d{4}-", opened)
    assert re.search(r'value\{\s+"to": 1\s+\}', opened)

    assert await click("retry") == "Choose tasks first."
    await page.click(box("mail-0"))
    assert await click("retry") == "Retry: 1 done."
    assert page.asked[-1] == "Retry task mail-0 of mails.dead?"
    await page.until(f"{lines}.length === 2")
    assert await page.see(f"{lines}[0].open")  # as it was
    await page.see("document.querySelector('#filter').focus()")
    await page.do("Input.insertText", text="TRY 3")
    assert await page.see(f"{lines}.length") == 1
    await page.click("document.querySelector('#every')")
    assert await click("move") == "Say where: give the name of a queue."
    await page.see("document.querySelector('#to').focus()")
    await page.do("Input.insertText", text="later")
    assert await click("move") == "Move: 1 done."
    assert page.asked[-1] == "Move task mail-2 of mails.dead to later?"
    await screens.show_tasks(page, "mails.dead")
    await page.until(f"{lines}.length === 1")
    await page.click("document.querySelector('#every')")
    assert await click("delete") == "Delete: 1 done."
    assert page.asked[-1] == "Delete all tasks of mails.dead?"
    await tasks_spared(page, url, click)
    await screens.show_tasks(page, "reports")
    await page.click("document.querySelector('#every')")
    assert await click("cancel") == "Cancel: 13 done."  # with that of "Run now"
    await page.until(f"{lines}.every((line) => line.textContent.includes('cancelled, ending'))")
    async with Tasks(url) as tasks:
        left = {task.id: task.queue for task in await tasks.tasks() if task.queue[:4] in {"mail", "late"}}
        assert left == {"mail-0": "mails", "mail-2": "later"}
        [back] = await tasks.tasks("mails")
        assert (back.attempt, back.error) == (0, "")
    acted = await page.see("document.querySelector('#actions').textContent")
    for each in (
        "allcanceltasks of reports13 tasks",
        "allmovetasks of mails.dead to later1 task",
        "allpausequeue api",
    ):
        assert each in acted


def box(id_: str) -> str:
    """Where a task is chosen."""
    return f"document.querySelector('[aria-label=\"choose {id_}\"]')"


async def tasks_spared(page: Page, url: str, click: Callable[[str], Awaitable[str]]) -> None:
    """One of all is left out, the filter is removed, or put in: only what is chosen and shown is deleted."""
    spared = dict[str, tuple[str, list[str]]]()
    async with Tasks(url) as tasks:
        for queue in ("unticked", "unfiltered", "filtered"):
            for number in range(3):
                await tasks.insert(queue, number, id=f"{queue}-{number}")
            await page.see(f"location.hash = '#tasks/{queue}'")
            await page.until(f"{box(f'{queue}-0')} !== null")
            if queue == "unfiltered":
                await filter_by(page, f"{queue}-0")
            await page.click("document.querySelector('#every')")
            if queue == "unticked":
                await page.click(box(f"{queue}-1"))
            else:
                await filter_by(page, f"{queue}-0" if queue == "filtered" else "")
            await click("delete")
            spared[queue] = page.asked[-1], sorted(task.id for task in await tasks.tasks(queue))
    assert spared == {
        "unticked": ("Delete 2 tasks of unticked?", ["unticked-1"]),
        "unfiltered": ("Delete task unfiltered-0 of unfiltered?", ["unfiltered-1", "unfiltered-2"]),
        "filtered": ("Delete task filtered-0 of filtered?", ["filtered-1", "filtered-2"]),
    }


async def filter_by(page: Page, text: str) -> None:
    """Show only tasks with this text."""
    await page.see(f"document.querySelector('#filter').value = {json.dumps(text)}")
    await page.see("document.querySelector('#filter').dispatchEvent(new Event('input'))")


async def test_it_loads_nothing_and_lets_nothing_else_run(page: str) -> None:
    async with httpx.AsyncClient(base_url=page) as client:
        answer = await client.get("/")
        data = await client.get("/v1/overview")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert not re.findall(r"unsafe|\*|https?:", " ".join(policy.values()))
    assert len(policy["script-src"].split()) == answer.text.count("<script>") == 1
    assert len(policy["style-src"].split()) == answer.text.count("<style>") == 2
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(| style=| on\w+=", answer.text)
    for each in (answer, data):
        assert each.headers["cache-control"] == "no-store"
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["cross-origin-resource-policy"] == "same-origin"


async def test_without_access_control_it_only_reads(page: str) -> None:
    async with httpx.AsyncClient(base_url=page) as client:
        rows = (await client.get("/v1/overview")).json()["queues"]["rows"]
        assert not any(row["may_change"] for row in rows)
        origin = {"origin": page.rstrip("/")}
        assert (await client.post("/v1/queues/api/hold", headers=origin)).status_code == 403
        assert (await client.get("/", headers={"host": "evil.example"})).status_code == 403
        assert not (await client.get("/v1/queues/api")).json()["is_held"]


async def test_behind_something_that_says_who_may_call_other_pages_may_not() -> None:
    """Their requests would have the cookies that the visitor's browser has for what is in front."""
    async with (
        screens.serving("memory://pages", insecure=True) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        for host, origin, code in (
            ("jobs.example", None, 404),
            ("jobs.example", "https://jobs.example", 404),
            ("jobs.example", "https://evil.example", 403),
            ("jobs.example", "https://evil.example/jobs.example", 403),
            ("jobs.example", "null", 403),
            ("127.0.0.1", "https://evil.example", 403),
        ):
            headers = {"content-type": "text/plain", "host": host} | ({"origin": origin} if origin else {})
            answer = await client.post("/v1/queues/nosuch/hold", headers=headers, content="{}")
            assert answer.status_code == code, (host, origin)


async def test_who_may_see_and_change_what(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    access = tmp_path / "access.toml"
    rules = {"looks": [("read", ["api"])], "runs": [("read", ["*"]), ("administer", ["*"])]}
    access.write_text(access_of(rules))
    async with screens.world(url), screens.serving(url, access=access) as address:
        client = httpx.AsyncClient(base_url=address)
        async with client:
            assert (await client.get("/")).status_code == 200
            refused = await client.get("/v1/overview")
            assert refused.status_code == 401
            assert "token" in refused.json()["detail"]

            async def seen(name: str) -> dict[str, Any]:
                answer = await client.get(
                    "/v1/overview", headers={"authorization": f"Bearer token of {name}"}
                )
                found: dict[str, Any] = answer.json()
                return found

            few, all_ = await seen("looks"), await seen("runs")
            assert [row["key"] for row in few["queues"]["rows"]] == ["api"]
            assert not few["queues"]["rows"][0]["may_change"]
            assert few["tasks"]["rows"] == few["schedules"]["rows"] == []
            assert "workers" not in few
            assert len(all_["queues"]["rows"]) == 6
            assert all(row["may_change"] for row in all_["queues"]["rows"])
            assert [row["cells"][0] for row in all_["schedules"]["rows"]] == ["nightly"]
            works = [row["cells"] for row in all_["workers"]["rows"] if row["cells"][-1] == "reports"]
            assert len(works) == 1


async def test_many_who_look_read_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path}"
    await IntervalQueue("api", rate="9/s", store=url).run(anyio.lowlevel.checkpoint)
    reads = 0
    look = Reader.look

    async def counted(self: Reader, name: str | None = None) -> Any:
        nonlocal reads
        reads += 1
        return await look(self, name)

    monkeypatch.setattr(Reader, "look", counted)
    monkeypatch.setattr("intervalq.service._page.page._REST", 3600.0)
    async with screens.serving(url) as address, httpx.AsyncClient(base_url=address) as client:
        answers = await asyncio.gather(*(client.get("/v1/overview") for _ in range(20)))
        assert {json.dumps(answer.json()["queues"]) for answer in answers} == {
            json.dumps(answers[0].json()["queues"])
        }
    assert reads == 1


async def test_a_part_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    async with screens.serving(url) as address, httpx.AsyncClient(base_url=address) as client:
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        (tmp_path / "state.db").write_bytes(b"no database" * 1000)
        found = (await client.get("/v1/overview")).json()
        assert "trouble" in found["queues"]
        assert str(tmp_path) not in json.dumps(found)


async def test_of_very_many_queues_only_the_first_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reader, rows):
        monkeypatch.setattr(module, "MAX_RECORDS", 2)
    async with Tasks(f"memory://{tmp_path}") as tasks, served(f"memory://{tmp_path}") as there:
        for name in "dcba":
            await tasks.insert(name, 1)
        async with httpx.AsyncClient() as client:
            shown = (await client.get(f"http://{there.http}/v1/overview")).json()["tasks"]["rows"]
    assert [row["cells"][0] for row in shown] == ["a", "b", "further queues weren't read"]


async def test_tasks_are_changed_in_bulk_within_the_rights_and_it_is_said_who_did_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"memory://{tmp_path}"
    rules = {
        "looks": [("read", ["*"])],
        "mends": [("read", ["mails*"]), ("delete", ["mails.dead"]), ("insert", ["mails"]), ("pace", ["api"])],
    }
    (tmp_path / "access.toml").write_text(access_of(rules))
    await IntervalQueue("api", rate="9/s", store=url).run(anyio.lowlevel.checkpoint)
    caplog.set_level("INFO", "intervalq.actions")
    async with Tasks(url) as tasks, screens.serving(url, access=tmp_path / "access.toml") as address:
        dead = [await tasks.insert("mails.dead", number) for number in range(3)]
        other = await tasks.insert("letters.dead", 1)
        async with httpx.AsyncClient(base_url=f"{address}v1/") as client:

            async def edit(name: str, change: str, queue: str = "mails.dead", **more: Any) -> httpx.Response:
                headers = {"authorization": f"Bearer token of {name}"}
                about = {"change": change, "queue": queue, **more}
                return await client.post("tasks/edit", headers=headers, json=about)

            for name, change, more in (
                ("looks", "retry", {}),
                ("looks", "cancel", {"ids": dead}),
                ("mends", "move", {"to": "elsewhere"}),
                ("mends", "delete", {"queue": "letters.dead"}),
            ):
                assert (await edit(name, change, **more)).status_code == 403, (name, change)
            for wrong in ({"change": "retry", "to": "mails"}, {"change": "move"}, {"change": "burn"}):
                assert (await edit("mends", **wrong)).status_code == 400
            mends = {"authorization": "Bearer token of mends"}
            body = rb'{"change": "retry", "queue": "mails.dead", "ids": ["\ud800"]}'
            assert (await client.post("tasks/edit", headers=mends, content=body)).status_code == 400
            assert [each.size for each in await tasks.queues()] == [1, 3]

            answer = await edit("mends", "retry", ids=[dead[0], other])
            why = "is not in queue mails.dead any more"
            assert answer.json() == {"done": 1, "refused": [{"id": other, "why": why}]}
            assert (await edit("mends", "delete")).json() == {"done": 2, "refused": []}
            assert {each.name: each.size for each in await tasks.queues()} == {"letters.dead": 1, "mails": 1}

            held = await client.post("queues/api/hold", headers=mends, json={"seconds": 60})
            assert held.status_code == 204
            actions = (await client.get("overview", headers=mends)).json()["actions"]["rows"]
            assert [row["cells"][1:] for row in actions] == [  # not that of a queue that it may not read
                ["mends", "delete", "tasks of mails.dead", "2 tasks"],
                ["mends", "retry", "tasks of mails.dead", "1 task"],
            ]
            looks = (await client.get("overview", headers={"authorization": "Bearer token of looks"})).json()
            assert looks["actions"]["rows"][0]["cells"][1:] == ["mends", "cool-down", "queue api", "done"]
            assert dict(looks["queues"]["rows"][0]["facts"])["held by"].startswith("mends, ")
            assert (await client.get("overview/tasks?queue=letters.dead", headers=mends)).status_code == 403
            hidden = await client.get(f"overview/tasks?id={other}", headers=mends)
            assert hidden.json() == {"value": None}
    said = [
        (record.message, record.__dict__["who"])
        for record in caplog.records
        if "intervalq.actions" in record.name
    ]
    assert said[-1] == ("mends: cool-down queue api", "mends")
