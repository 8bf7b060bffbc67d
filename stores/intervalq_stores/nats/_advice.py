"""The part of `intervalq doctor` about a NATS with the records of queues."""

from __future__ import annotations

from typing import Any, Final

from intervalq_stores.nats._queue.stream import KEPT, History

_MIN_KEPT: Final = 256
"""The minimum number of entries per queue: a checkpoint may fail a few times in a row."""

_LIMITS: Final = ("max_bytes", "max_msgs", "max_age")


async def advice(history: History) -> list[tuple[str, str]]:
    """See `NATSStore.advice`."""
    streams = await history.streams()
    connection = await history.server.connection()
    found = await history.server.safety()
    found += [("ok", f"the server is NATS {connection.version}, and its streams can count")]
    for stream in streams:
        found += [_kept(stream), *_limits(stream)]
    return found


def _kept(stream: dict[str, Any]) -> tuple[str, str]:
    name, replicas = f"stream {stream['name']!r}", stream.get("num_replicas", 1)
    if replicas > 1:
        return "ok", (
            f"{name} has {replicas} replicas, so it works while most of them do. Replicas don't replace a "
            "disk: unless sync_interval: always is set, a power cut of several machines, or a crash of one "
            "while another is cut off or paused, may lose the last writes"
        )
    if stream["storage"] == "memory":
        return "warning", (
            f"{name} is kept in memory: after a restart of the server every queue starts over, not paused, "
            "and with the settings of the first process that comes; for queues that must survive it, remove "
            "the stream, which is then created again with file storage"
        )
    return "warning", (
        f"{name} is kept in files, which survive a crash of the server; but by default, NATS writes them to "
        "the disk only every two minutes, so a crash of the machine may lose the last writes: "
        "set sync_interval: always in the server's jetstream block if that matters"
    )


def _limits(stream: dict[str, Any]) -> list[tuple[str, str]]:
    name = f"stream {stream['name']!r}"
    found = [
        (
            "warning",
            (
                f"{name} has a limit, {limit} {stream[limit]}, which may remove a queue's record, so that "
                "the queue starts over with one quiet interval: remove the limit"
            ),
        )
        for limit in _LIMITS
        if stream.get(limit, -1) > 0
    ]
    kept = stream.get("max_msgs_per_subject", -1)
    if stream.get("allow_msg_counter") and 0 < kept < _MIN_KEPT:
        found.append(("error", f"{name} keeps {kept} messages per subject: set max_msgs_per_subject {KEPT}"))
    return found
