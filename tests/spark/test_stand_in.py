"""The stand-in for an API in the Spark tests: what it records, holds and refuses."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from spark.stand_in import Policy, SparkApi


@contextmanager
def client(api: SparkApi) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*api.address, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, Any]:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def test_it_notes_every_call_of_a_kept_connection(spark_api: SparkApi) -> None:
    with client(spark_api) as connection:
        assert ask(connection, "/rows/a%20b?x=1", **{"Idempotency-Key": "k"}) == (
            200,
            {"key": "a b", "call": 1, "idempotency": "k"},
        )
        first = connection.sock
        connection.request("POST", "/", body="x" * 100_000, headers={"X-Row": "c"})
        assert json.load(connection.getresponse())["key"] == "c"
        assert ask(connection, "/rows/c")[1]["call"] == 2
        assert connection.sock is first
    assert spark_api.per_key() == {"a b": 1, "c": 2}
    assert spark_api.repeats() == {"c": 2}
    assert all(call.answered and call.at <= call.answered for call in spark_api.calls)
    assert [call.idempotency for call in spark_api.calls] == ["k", None, None]
    assert len(spark_api.gaps()) == 2
    assert spark_api.rate() == pytest.approx(2 / (spark_api.calls[2].at - spark_api.calls[0].at))
    assert spark_api.most_in_flight() == 1
    assert spark_api.most_in(1e6) == 3
    assert spark_api.most_in(1e-9) == 1


def test_requests_that_come_in_pieces_or_together(spark_api: SparkApi) -> None:
    with socket.create_connection(spark_api.address, timeout=30) as raw:
        raw.sendall(b"GET /rows/a HT")
        raw.sendall(b"TP/1.1\r\nContent-Length: 7\r\n\r\nab")
        raw.sendall(b"c\r\n\r\nGET /rows/b HTTP/1.1\r\n\r\nGET /rows/c HTTP/1.1\r\n\r\n")
        output = b""
        while output.count(b'"call": 1') < 3:
            output += raw.recv(10_000)
    assert [call.key for call in spark_api.calls] == ["a", "b", "c"]
    with socket.create_connection(spark_api.address, timeout=30) as raw:
        raw.sendall(b"what\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")
    assert spark_api.count == 3


def test_it_holds_what_it_is_told_to(spark_api: SparkApi) -> None:
    spark_api.hold("slow")
    with ThreadPoolExecutor(2) as pool, client(spark_api) as one, client(spark_api) as other:
        slow = pool.submit(ask, one, "/rows/slow")
        spark_api.until(spark_api.in_flight)
        assert ask(other, "/rows/quick")[0] == 200
        assert not slow.done()
        assert [call.key for call in spark_api.in_flight()] == ["slow"]
        assert spark_api.most_in_flight() == 2
        spark_api.release("slow")
        assert slow.result()[0] == 200
        spark_api.hold()
        slow = pool.submit(ask, one, "/rows/slow")
        spark_api.until(spark_api.in_flight)
        spark_api.release()
        assert slow.result()[1]["call"] == 2
        spark_api.hold(after=spark_api.count + 1)
        assert ask(one, "/rows/slow")[1]["call"] == 3
        slow = pool.submit(ask, one, "/rows/slow")
        spark_api.until(spark_api.in_flight)
        assert not slow.done()
        spark_api.release()
        assert slow.result()[1]["call"] == 4


def test_it_sees_who_hangs_up(spark_api: SparkApi) -> None:
    spark_api.hold()
    with socket.create_connection(spark_api.address, timeout=30) as raw:
        raw.sendall(b"GET /rows/killed HTTP/1.1\r\n\r\n")
        spark_api.until(spark_api.in_flight)
    spark_api.until(spark_api.gone, "the end of the connection")
    spark_api.release()
    assert [call.answered for call in spark_api.gone()] == [None]
    assert spark_api.in_flight() == []


def test_latency_and_status_may_depend_on_the_call() -> None:
    def status(key: str, call: int) -> int:
        return 500 if (key, call) == ("a", 1) else 200

    with SparkApi(latency=lambda key, _: 0.05 if key == "a" else 0, status=status) as api:
        with client(api) as connection:
            assert [ask(connection, f"/rows/{key}")[0] for key in "aab"] == [500, 200, 200]
        took = [call.answered - call.at for call in api.calls if call.answered is not None]
        assert min(took[:2]) >= 0.05
        assert api.report()["repeated"] == 1


def test_a_policy_that_punishes() -> None:
    with SparkApi(policy=Policy(limit=3, window=1e6, penalty=1e6)) as api, client(api) as connection:
        assert [ask(connection, "/rows/a")[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        connection.request("GET", "/rows/a")
        answer = connection.getresponse()
        assert 1e6 - 100 < int(answer.headers["Retry-After"]) <= 1e6
        answer.read()
        assert api.refused() == 3


def test_a_penalty_ends_and_a_window_moves_on() -> None:
    times = [0.0]
    with (
        SparkApi(policy=Policy(2, window=1, penalty=10), clock=lambda: times[0]) as api,
        client(api) as connection,
    ):
        answer = [ask(connection, "/rows/a")[0] for times[0] in (0, 0.5, 1, 1.2, 11.1, 11.3, 11.4, 11.5)]
    assert answer == [200, 200, 200, 429, 429, 200, 200, 429]
