"""OpenAI-style clients against a stub that keeps sliding logs of requests and tokens."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial

import anyio
import httpx
import pytest

from intervalq import ConfigMismatch, IntervalQueue, Limit
from intervalq.integrations.openai import OpenAITransport, most_tokens
from intervalq.rules import Configure
from intervalq.sync import IntervalQueue as BlockingQueue
from virtual_store import FarStore, gather, in_virtual_time

MINUTE = 60


class Parts(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that is read from a connection."""

    def __init__(self, body: bytes) -> None:
        self.body, self.closed = body, False

    def __iter__(self) -> Iterator[bytes]:
        yield from (self.body[:9], self.body[9:])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.close()


class Stub(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Allows this number of requests and tokens in any minute."""

    def __init__(self, requests: int, tokens: int, *, used: int | None = None, streams: bool = False) -> None:
        self.most = {"requests": requests, "tokens": tokens}
        self.more: dict[str, str] = {}
        self.used, self.streams = used, streams
        self.seen: list[tuple[float, int]] = []
        self.refused = 0

    def answer(self, request: httpx.Request, at: float) -> httpx.Response:
        tokens = most_tokens(request)
        recent = [taken for then, taken in self.seen if then > at - MINUTE]
        names = {f"x-ratelimit-limit-{name}": str(most) for name, most in self.most.items()} | self.more
        if len(recent) >= self.most["requests"] or sum(recent) + tokens > self.most["tokens"]:
            self.refused += 1
            return httpx.Response(429, headers={**names, "retry-after": "1"})
        self.seen.append((at, tokens))
        body = {"usage": {"total_tokens": tokens if self.used is None else self.used}}
        if self.streams:
            packed = gzip.compress(json.dumps(body).encode())
            zipped = {"content-type": "application/json", "content-encoding": "gzip"}
            return httpx.Response(200, headers=names | zipped, stream=Parts(packed))
        return httpx.Response(200, headers=names, json=body)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(0.01)
        return self.answer(request, anyio.current_time())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request, 0)


@pytest.mark.parametrize(("requests", "tokens"), [(30, 100_000), (600, 5_000)])
@in_virtual_time
async def test_nothing_is_refused_and_limits_are_learned(requests: int, tokens: int) -> None:
    stub = Stub(requests, tokens)
    queue = IntervalQueue("llm", limits=["10/min", "2000 tokens/min"], store=FarStore())
    async with httpx.AsyncClient(transport=OpenAITransport(queue, stub)) as client:

        async def call(number: int) -> None:
            body = {"prompt": "x" * number, "max_tokens": 100}
            assert (await client.post("http://api/v1", json=body, timeout=None)).status_code == 200

        await gather(*(partial(call, number) for number in range(60)))
        state = await queue.inspect()
    assert [each.limit for each in state.limits] == [f"{requests}/m", f"{tokens} tokens/m"]
    assert stub.refused == 0
    assert len(stub.seen) == 60
    taken = sum(each for _, each in stub.seen)
    possible = max(60 / requests, taken / tokens)
    assert stub.seen[-1][0] < (possible + 1.1) * MINUTE


@in_virtual_time
async def test_without_units_it_is_refused() -> None:
    """This proves that the judge can find violations: the same calls without their tokens are refused."""
    stub = Stub(600, 2_000)
    queue = IntervalQueue("llm", limits=["600/min", "2000 tokens/min"], store=FarStore())
    transport = OpenAITransport(queue, stub, tokens=lambda _: 0)
    async with httpx.AsyncClient(transport=transport) as client:
        for _ in range(30):
            await client.post("http://api/v1", json={"max_tokens": 100})
    assert stub.refused


def test_blocking_clients_learn_too() -> None:
    queue = BlockingQueue("llm-blocking", limits=["10/min", "2000 tokens/min"], store="memory://")
    with queue, httpx.Client(transport=OpenAITransport(queue, Stub(77, 5_000))) as client:
        for _ in range(2):
            assert client.post("http://api/v1", json={"max_tokens": 100}).status_code == 200
        assert [each.limit for each in queue.inspect().limits] == ["77/m", "5000 tokens/m"]
        queue.drop()


def queue_on(store: FarStore, *limits: str | Limit) -> IntervalQueue:
    return IntervalQueue("llm", limits=limits or ["10/min", "2000 tokens/min"], store=store)


async def limits_of(queue: IntervalQueue) -> list[str]:
    return [each.limit for each in (await queue.inspect()).limits]


async def tokens_of(queue: IntervalQueue) -> int:
    await anyio.sleep(1)  # within which differences are sent
    return next(each.taken for each in (await queue.inspect()).limits if "tokens" in each.limit)


async def post(client: httpx.AsyncClient, **body: object) -> int:
    json = {"max_tokens": 100} | body
    return (await client.post("http://api/v1", json=json, timeout=None)).status_code


@in_virtual_time
async def test_limits_are_learned_from_the_next_response_if_the_store_fails() -> None:
    store = FarStore()
    other = FarStore(store.behind)

    class Failing(Stub):
        def answer(self, request: httpx.Request, at: float) -> httpx.Response:
            store.loses_answers = 1 - len(self.seen)
            return super().answer(request, at)

    async with httpx.AsyncClient(transport=OpenAITransport(queue_on(store), Failing(77, 5_000))) as client:
        assert await post(client) == 200
        assert await limits_of(queue_on(other)) == ["10/m", "2000 tokens/m"]
        store.loses_answers = 0
        assert await post(client) == 200
    assert await limits_of(queue_on(other)) == ["77/m", "5000 tokens/m"]


@in_virtual_time
async def test_responses_that_come_together_configure_once() -> None:
    store = FarStore(delay=0.1)
    async with httpx.AsyncClient(transport=OpenAITransport(queue_on(store), Stub(77, 5_000))) as client:
        await gather(*[partial(post, client)] * 5)
    assert len([each for each in store.calls if isinstance(each, Configure)]) == 1


@in_virtual_time
async def test_a_process_that_starts_later_adopts_what_was_learned() -> None:
    store, stub = FarStore(), Stub(77, 5_000, used=30)
    async with httpx.AsyncClient(transport=OpenAITransport(queue_on(store), stub)) as client:
        assert await post(client) == 200
    other = FarStore(store.behind)
    with pytest.raises(ConfigMismatch):
        async with queue_on(other).slot():
            pass
    late = IntervalQueue(
        "llm", limits=["2000 tokens/min", "10/min"], store=other, on_mismatch="adopt"
    )  # in another order, too
    async with httpx.AsyncClient(transport=OpenAITransport(late, stub)) as client:
        for _ in range(2):
            assert await post(client) == 200
        assert await post(client, max_tokens=4_000) == 200
    assert await tokens_of(late) == 120


@pytest.mark.parametrize("status", [200, 429])
@in_virtual_time
async def test_a_response_is_returned_though_the_queue_was_closed_meanwhile(status: int) -> None:
    queue = queue_on(FarStore())

    async def answer(_: httpx.Request) -> httpx.Response:
        await queue.close()
        names = {f"x-ratelimit-limit-{name}": "77" for name in ("requests", "tokens")} | {"retry-after": "3"}
        return httpx.Response(status, headers=names, json={"usage": {"total_tokens": 1}})

    async with httpx.AsyncClient(transport=OpenAITransport(queue, httpx.MockTransport(answer))) as client:
        assert await post(client) == status


def test_blocking_responses_are_returned_though_the_queue_was_closed_meanwhile() -> None:
    queue = BlockingQueue("llm-closed", limits=["10/min", "2000 tokens/min"], store="memory://")

    def answer(_: httpx.Request) -> httpx.Response:
        queue.drop()
        queue.close()
        return httpx.Response(429, headers={"x-ratelimit-limit-requests": "77", "retry-after": "3"})

    with httpx.Client(transport=OpenAITransport(queue, httpx.MockTransport(answer))) as client:
        assert client.post("http://api/v1", json={"max_tokens": 1}).status_code == 429


@in_virtual_time
async def test_other_limits_and_the_jitter_stay() -> None:
    store = FarStore()
    given: list[str | Limit] = [
        "5000/day",
        Limit(2_000, "1m", "tokens", jitter=2),
        "9/s",
        "10/min",
        "9000 tokens/h",
    ]
    queue = queue_on(store, *given)
    async with httpx.AsyncClient(transport=OpenAITransport(queue, Stub(77, 5_000))) as client:
        assert await post(client) == 200
    assert await limits_of(queue) == [
        "5000/d", "5000 tokens/m with a jitter of 2s", "9/s", "77/m", "9000 tokens/h"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reset", "limit"),
    [("1s", "77/m"), ("120ms", "77/m"), ("1m0s", "77/m"), ("59.5", "77/m")]
    + [(reset, "10/m") for reset in ("1m0.5s", "7m12s", "2h", "1d", "61", "1790000000", "soon", "")],
)
@in_virtual_time
async def test_only_what_is_refilled_in_a_minute_is_a_limit_a_minute(reset: str, limit: str) -> None:
    stub, queue = Stub(77, 5_000), queue_on(FarStore())
    stub.more = {"x-ratelimit-reset-requests": reset}
    async with httpx.AsyncClient(transport=OpenAITransport(queue, stub)) as client:
        assert await post(client) == 200
    assert await limits_of(queue) == [limit, "5000 tokens/m"]


@in_virtual_time
async def test_each_model_has_limits_of_its_own() -> None:
    stub, queue = Stub(77, 5_000), queue_on(FarStore())

    def model(request: httpx.Request) -> str:
        return str(json.loads(request.content)["model"])

    async with httpx.AsyncClient(transport=OpenAITransport(queue, stub, key=model)) as client:
        for name, requests in (("small", 77), ("large", 33)):
            stub.most["requests"] = requests
            for _ in range(2):  # the handle of the key, which knows its limits, isn't forgotten
                assert await post(client, model=name) == 200
        assert await limits_of(queue["small"]) == ["77/m", "5000 tokens/m"]
        assert await limits_of(queue["large"]) == ["33/m", "5000 tokens/m"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("used", [30, 300])
@in_virtual_time
async def test_what_the_answer_used_is_settled(*, streams: bool, used: int) -> None:
    queue = queue_on(FarStore())
    transport = OpenAITransport(queue, Stub(77, 5_000, used=used, streams=streams))
    async with httpx.AsyncClient(transport=transport) as client:
        for _ in range(3):
            assert await post(client) == 200
    assert await tokens_of(queue) == 3 * used


@pytest.mark.parametrize("used", [-1, 1.5, None, "many", True])
@in_virtual_time
async def test_what_is_no_number_of_tokens_leaves_the_estimate(used: object) -> None:
    bodies: list[object] = [{"usage": {"total_tokens": used}}, {"usage": used}, {}, [used]]

    queue = queue_on(FarStore())
    transport = OpenAITransport(
        queue, httpx.MockTransport(lambda _: httpx.Response(200, json=bodies.pop())), tokens=lambda _: 70
    )
    async with httpx.AsyncClient(transport=transport) as client:
        for _ in range(4):
            assert await post(client) == 200
    assert await tokens_of(queue) == 280


@in_virtual_time
async def test_streams_stay_at_their_estimate() -> None:
    """These are event streams, and a body that isn't read to its end."""
    queue, bodies = queue_on(FarStore()), []

    def answer(request: httpx.Request) -> httpx.Response:
        kind = "text/event-stream" if b"true" in request.content else "application/json"
        bodies.append(Parts(b'{"usage": {"total_tokens": 30}}'))
        return httpx.Response(200, headers={"content-type": kind}, stream=bodies[-1])

    transport = OpenAITransport(queue, httpx.MockTransport(answer), tokens=lambda _: 70)
    async with httpx.AsyncClient(transport=transport) as client:
        assert await post(client, stream=True) == 200
        async with client.stream("POST", "http://api/v1", json={"stream": False}):
            pass
    assert await tokens_of(queue) == 140
    assert all(body.closed for body in bodies)


def test_blocking_clients_settle_too() -> None:
    queue = BlockingQueue("llm-settled", limits=["10/min", "2000 tokens/min"], store="memory://")
    transport = OpenAITransport(queue, Stub(77, 5_000, used=30, streams=True))
    with queue, httpx.Client(transport=transport) as client:
        for _ in range(2):
            assert client.post("http://api/v1", json={"max_tokens": 100}).status_code == 200
        with queue.slot(cost={"tokens": 1}):  # whose question reports everything
            assert queue.inspect().limits[1].taken == 61
        queue.drop()


@in_virtual_time
async def test_a_request_without_a_body_takes_a_start_only() -> None:
    queue = queue_on(FarStore())
    transport = OpenAITransport(queue, Stub(77, 5_000))
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.get("http://api/v1/models")).status_code == 200
    assert [each.taken for each in (await queue.inspect()).limits] == [1, 0]


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 10, "n": 3}, 30),
        ({"max_output_tokens": 10, "n": None}, 10),
        ({"prompt": "\u00e4"}, 4_096),
        ([1], 4_096),
    ],
)
def test_the_most_that_a_request_takes(body: object, tokens: int) -> None:
    request = httpx.Request("POST", "http://api/v1", json=body)
    assert most_tokens(request) == len(request.content) + tokens


def test_a_body_that_is_streamed_counts_as_empty() -> None:
    request = httpx.Request("POST", "http://api/v1", content=iter([b"{}"]))
    assert most_tokens(request, answer=7) == 7
