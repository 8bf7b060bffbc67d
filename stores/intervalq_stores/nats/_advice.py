"""What an operator should know of a NATS that has the records of queues."""

from __future__ import annotations

from typing import Any, Final

from intervalq_stores.nats._queue.stream import KEPT, History

_LEAST: Final = 256
"""So many entries of a queue are needed at least: a checkpoint may fail a few times in a row."""

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
            f"{name} has {replicas} replicas: it goes on while most of them do. They don't stand in for "
            "a disk: unless sync_interval: always is set, a power cut of several machines, or a crash of one "
            "while another is cut off or stands still, may lose the last writes"
        )
    if stream["storage"] == "memory":
        return "warning", (
            f"{name} is kept in memory: after a restart of the server every queue begins anew, not paused, "
            "and with the settings of the first shard; for queues that must outlive it, remove the stream, "
            "which is then made anew with file storage"
        )
    return "warning", (
        f"{name} is kept in files, which outlive a crash of the server; but NATS writes them to the disk "
        "every two minutes only, unless told otherwise, so a crash of the machine may lose the last writes: "
        "set sync_interval: always in the server's jetstream block if that matters"
    )


def _limits(stream: dict[str, Any]) -> list[tuple[str, str]]:
    name = f"stream {stream['name']!r}"
    found = [
        (
            "warning",
            (
                f"{name} has a limit, {limit} {stream[limit]}: what is removed to keep it may be a queue's "
                "record, after which that begins anew with one quiet interval: remove the limit"
            ),
        )
        for limit in _LIMITS
        if stream.get(limit, -1) > 0
    ]
    kept = stream.get("max_msgs_per_subject", -1)
    if stream.get("allow_msg_counter") and 0 < kept < _LEAST:
        found.append(("error", f"{name} keeps {kept} messages a subject: set max_msgs_per_subject {KEPT}"))
    return found
