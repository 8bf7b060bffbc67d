"""Pacing over HTTP/JSON: slots that come, slots that would come too late, and requests of any content."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from intervalq import IntervalQueue
from intervalq.service import Addresses, serve
from service.test_remote_access import access_of


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(f"memory://{tmp_path}", grpc=None, http="127.0.0.1:0", task_status=task_status)

        addresses = await group.start(run)
        async with httpx.AsyncClient(base_url=f"http://{addresses.http}/v1/queues", timeout=60) as client:
            yield client
        group.cancel_scope.cancel()


async def test_slots_are_paced_quoted_and_refused(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """What HTTP takes, a handle at the store takes, too, from one record."""
    created = await http.put("/q", json={"interval": "1h"})
    assert (created.status_code, created.json()["interval"]) == (200, 3600.0)
    first = await http.post("/q/slot")
    assert (first.status_code, first.json()["ticket"]) == (200, 1)
    assert first.headers["ratelimit-policy"] == '"pace";q=1;w=3600'
    late = await http.post("/q/slot", json={"within": 5})
    assert late.status_code == 429
    assert late.headers["content-type"] == "application/problem+json"
    assert 3500 < int(late.headers["retry-after"]) <= 3700
    assert late.headers["ratelimit"].startswith('"pace";r=0;t=3')
    assert late.json()["status"] == 429
    assert 3500 < (await http.post("/q/quote")).json()["seconds"] <= 3700
    assert (await http.put("/q", json={"interval": "1us"})).json()["ticket"] >= 1
    async with IntervalQueue("q", store=f"memory://{tmp_path}") as queue:
        for _ in range(3):
            assert (await http.post("/q/slot", json={"within": 30})).status_code == 200
            async with queue.slot():
                pass
        state = await queue.inspect()
    assert state.current >= 7
    assert (await http.get("/q")).json()["current"] == state.current


async def test_a_pause_ends_for_those_who_wait(http: httpx.AsyncClient) -> None:
    await http.put("/q", json={"rate": "1000/s"})
    assert (await http.post("/q/hold")).status_code == 204
    assert (await http.get("/q")).json()["is_held"]
    assert (await http.post("/q/quote")).json() == {"seconds": None}
    codes: list[int] = []

    async def wait() -> None:
        codes.append((await http.post("/q/slot", json={"within": 600})).status_code)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(wait)
        while (await http.get("/q")).json()["waiting"] < 5:
            await anyio.sleep(0.01)
        assert (await http.post("/q/resume")).status_code == 204
    assert codes == [200] * 5
    assert (await http.post("/q/hold", json={"seconds": 0.001})).status_code == 204


async def test_what_a_job_really_took_is_free_for_others(http: httpx.AsyncClient) -> None:
    await http.put("/q", json={"limits": ["1000 tokens/h"]})
    slot = await http.post("/q/slot", json={"cost": {"tokens": 900}, "within": 60})
    assert slot.headers["ratelimit"].startswith('"1000 tokens/h";r=100;t=0')
    assert '"1000 tokens/h";q=1000;w=3600;qu="tokens"' in slot.headers["ratelimit-policy"]
    assert (await http.post("/q/slot", json={"cost": {"tokens": 500}})).status_code == 429
    receipt = slot.json()["receipt"]
    for units, code in (({"stars": 1}, 400), ({"tokens": 400}, 204), ({"tokens": 400}, 404)):
        settled = await http.post("/q/settle", json={"receipt": receipt, "units": units})
        assert settled.status_code == code, settled.text
    assert (await http.post("/other/settle", json={"receipt": receipt, "units": {"a": 1}})).status_code == 404
    with anyio.fail_after(60):  # the report goes to the store within a second
        while (await http.post("/q/slot", json={"cost": {"tokens": 500}})).status_code == 429:
            await anyio.sleep(0.02)


async def test_of_too_many_receipts_the_oldest_is_forgotten(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intervalq.service._pacing.verbs._MAX_RECEIPTS", 2)
    await http.put("/q", json={"limits": ["1000 tokens/h"]})
    slots = [await http.post("/q/slot", json={"cost": {"tokens": 10}}) for _ in range(3)]
    receipts = [slot.json()["receipt"] for slot in slots]
    settled = [
        (await http.post("/q/settle", json={"receipt": receipt, "units": {"tokens": 5}})).status_code
        for receipt in receipts
    ]
    assert settled == [404, 204, 204]


async def test_keys_on_their_own_and_under_one_rate(http: httpx.AsyncClient) -> None:
    await http.put("/q", json={"rate": "1/h"})
    assert (await http.put("/q", json={"key": "ä/b", "rate": "1/h"})).status_code == 200
    assert (await http.post("/q/slot", json={"key": "ä/b"})).status_code == 200
    assert (await http.post("/q/slot", json={"key": "ä/b"})).status_code == 429
    assert (await http.get("/q", params={"key": "ä/b"})).json()["current"] == 1
    await http.put("/all", json={"rate": "1/h"})
    assert (await http.post("/all/slot", json={"key": "a", "each": "shared"})).status_code == 200
    assert (await http.post("/all/slot", json={"key": "b", "each": "shared"})).status_code == 429
    await http.put("/fast", json={"rate": "1000/s"})
    assert (
        await http.post("/fast/slot", json={"key": "a", "each": "shared", "within": 60})
    ).status_code == 200
    refused = await http.post("/fast/slot", json={"key": "a", "within": 60})
    assert (refused.status_code, "this handle has no each=" in refused.json()["detail"]) == (409, True)


async def test_requests_of_any_content_are_refused_by_name(http: httpx.AsyncClient) -> None:
    await http.put("/q", json={"rate": "10/s"})
    for verb, path, body, code in (
        ("POST", "/q/slot", b"{", 400),
        ("POST", "/q/slot", b"[" * 100_000, 400),
        ("POST", "/q/slot", b"[]", 400),
        ("POST", "/q/slot", b'{"within": NaN}', 400),
        ("POST", "/q/slot", b'{"within": 1e400}', 400),
        *(("POST", "/q/slot", b'{"%s": 1%s}' % (field, b"0" * 400), 400) for field in (b"within", b"cost")),
        ("POST", "/q/slot", b'{"cost": 0}', 400),
        ("POST", "/q/slot", b'{"cost": {}}', 400),
        ("POST", "/q/slot", b'{"cost": {"tokens": 1}}', 400),
        ("POST", "/q/slot", b'{"surprise": 1}', 400),
        ("POST", "/q/slot", b'{"each": "often", "key": "k"}', 400),
        ("POST", "/q/slot", b" " * (5 << 20), 413),
        ("POST", "/nowhere/slot", b"", 404),
        ("POST", "/no%20queue/slot", b"", 400),
        ("POST", "/q/settle", b"{}", 400),
        ("PUT", "/new", b"{}", 404),
        ("PUT", "/new", b'{"rate": "often"}', 400),
        ("PUT", "/q", b'{"burst": 1000000, "interval": "1d"}', 400),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/q?key=", b"", 400),
        ("GET", "/q?a=b", b"", 400),
    ):
        answer = await http.request(verb, path, content=body)
        assert (answer.status_code, answer.headers["content-type"]) == (code, "application/problem+json"), (
            path
        )
        assert answer.json()["detail"]


async def test_a_client_that_goes_away_gives_its_ticket_back(http: httpx.AsyncClient) -> None:
    await http.put("/q", json={"interval": "1h"})
    await http.post("/q/slot")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: http.post("/q/slot", json={"within": 3_600}))
        while not (await http.get("/q")).json()["waiting"]:
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    while (await http.get("/q")).json()["waiting"]:
        await anyio.sleep(0.01)
    assert 3500 < (await http.post("/q/quote")).json()["seconds"] <= 3700


async def test_who_may_pace_and_who_may_administer(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_of({name: [(name, ["q"])] for name in ("pace", "administer", "read")}))
    tries: tuple[tuple[str, str, dict[str, Any], str], ...] = (
        ("PUT", "/q", {"rate": "1000/s"}, "administer"),
        ("POST", "/q/slot", {"within": 60}, "pace"),
        ("POST", "/q/quote", {}, "pace"),
        ("POST", "/q/hold", {"seconds": 0.001}, "pace"),
        ("POST", "/q/hold", {}, "administer"),
        ("POST", "/q/resume", {}, "administer"),
        ("GET", "/q", {}, "read"),
    )
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(
                f"memory://{tmp_path}", grpc=None, http="127.0.0.1:0", access=file, task_status=task_status
            )

        addresses = await group.start(run)
        async with httpx.AsyncClient(base_url=f"http://{addresses.http}/v1/queues") as client:
            for method, path, body, needed in tries:
                for name in ("pace", "administer", "read", "nobody"):
                    headers = {"authorization": f"Bearer token of {name}"}
                    content = json.dumps(body) if method != "GET" else None
                    answer = await client.request(method, path, content=content, headers=headers)
                    expected = {needed: {200, 204}, "nobody": {401}}.get(name, {403})
                    assert answer.status_code in expected, (method, path, name, answer.text)
        group.cancel_scope.cancel()


async def test_costs_that_no_record_can_have_are_a_conflict(http: httpx.AsyncClient) -> None:
    """A key may be slower than its queue, by whose pace the service checks costs at first."""
    await http.put("/q", json={"interval": "1ms"})
    await http.put("/q", json={"key": "slow", "interval": "366d"})
    refused = await http.post("/q/slot", json={"key": "slow", "cost": 535})
    assert refused.status_code == 409
    assert "use smaller ones" in refused.json()["detail"]
    assert (await http.post("/q/slot", json={"key": "slow", "cost": 5})).status_code == 200
