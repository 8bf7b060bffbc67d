"""`intervalq serve`: a store for clients in other languages and on other machines, until a signal ends it."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click
from anyio.abc import TaskStatus

from intervalq._show import as_json, seconds, warn
from intervalq._spec import parse
from intervalq.cli._options import examples
from intervalq.cli._work.worker import heard
from intervalq.errors import InvalidOption

if TYPE_CHECKING:
    from intervalq.service import Addresses, Tls

_NONE: Final = "none"
_FILES: Final = 32_768
"""Open files: both servers have up to 10,000 connections, and the store needs some."""
_STORE_HELP: Final = (
    "What to serve: a URL with postgresql:// or redis://, or the path of a SQLite database; of a URL with "
    "nats://, only queues and schedules are served. To keep passwords out of `ps`, set INTERVALQ_STORE in "
    "the environment instead. Default: the SQLite files in your state folder."
)


@click.command(
    epilog=examples(
        "intervalq serve --store ./app.db",
        "intervalq serve --store ./app.db --http none --json",
    )
)
@click.option("--store", metavar="URL", help=_STORE_HELP)
@click.option(
    "--grpc",
    default="127.0.0.1:37706",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the gRPC service listens. Port 0 is any free port; `none` omits the service.",
)
@click.option(
    "--http",
    default="127.0.0.1:9100",
    show_default=True,
    metavar="HOST:PORT",
    help="The same for the HTTP/JSON service.",
)
@click.option(
    "--envoy",
    metavar="FILE",
    help="Answer Envoy's rate limit requests over gRPC, too, by the limits in this TOML file.",
)
@click.option(
    "--access",
    metavar="FILE|URL",
    help="A TOML file that says who may do what, by bearer tokens; or the URL of an Open Policy Agent. "
    "Default: whoever reaches an address may do everything.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    help="Show gaps, lateness, unused slots and refusals on the page from this log, which "
    "IntervalQueue(log=...) writes. Can be repeated.",
)
@click.option("--tls-cert", metavar="FILE", help="The service's certificate (PEM), with its chain.")
@click.option("--tls-key", metavar="FILE", help="The private key of the certificate (PEM).")
@click.option(
    "--tls-client-ca", metavar="FILE", help="Accept only clients with a certificate of this authority (PEM)."
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen on addresses that other machines can reach even without --access or a certificate.",
)
@click.option(
    "--grace",
    default="10s",
    show_default=True,
    metavar="D",
    help="How long running requests may go on after the first signal.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print the addresses as a JSON object.")
def serve(
    *,
    store: str | None,
    grpc: str,
    http: str,
    envoy: str | None,
    access: str | None,
    logs: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    insecure: bool,
    grace: str,
    as_json_: bool,
) -> None:
    """Serve a store over gRPC and HTTP, for any language.

    The service speaks EntroQ's protocol for tasks, paces over HTTP/JSON, and is the store
    intervalq://HOST:PORT for other programs of intervalq. It keeps nothing itself, so any number of them may
    serve one store. Once it is ready, it prints its addresses on standard output. On standard error, it
    writes a line for each change that a caller makes for everybody, such as a pause, with the caller's name.

    After SIGTERM or Ctrl-C it accepts no more requests; waiting claims end at once, and the
    other requests may finish. A second signal ends the service at once. The exit code is 0; 1 if the store
    can't be used; 2 for wrong use, or if an address can't be had; 128 plus the signal's number after a second
    signal.
    """
    from intervalq.service import serve as serve_  # noqa: PLC0415 - help must work without the extra

    if grpc == http == _NONE:
        raise InvalidOption("give --grpc or --http an address: with none of them, there is nothing to serve")
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    for log in [log for log in logs if not Path(log).exists()]:
        warn(f"{log} isn't there yet: the page shows what queues write to it from then on")
    patience = parse.duration(grace, what="grace") / 1e6
    _allow_connections()

    async def run() -> None:
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def heed() -> None:
                with anyio.open_signal_receiver(*heard()) as signals:
                    async for number in signals:
                        if scope.cancel_called:
                            os._exit(128 + number)  # the service keeps nothing that could be lost
                        scope.cancel()
                        warn(
                            f"stopping: requests may go on for {seconds(patience)}; a second signal ends them"
                        )

            async def served(*, task_status: TaskStatus[Addresses]) -> None:
                with scope:
                    await serve_(
                        store,
                        grpc=None if grpc == _NONE else grpc,
                        http=None if http == _NONE else http,
                        envoy=envoy,
                        access=access,
                        logs=logs,
                        tls=tls,
                        insecure=insecure,
                        grace=patience,
                        task_status=task_status,
                    )
                group.cancel_scope.cancel()

            group.start_soon(heed)
            _say(await group.start(served), as_json_=as_json_)

    _say_who_acts()
    anyio.run(run)


def _allow_connections() -> None:
    """Let this process have as many connections as the system allows; usually it starts with 1,024."""
    with suppress(ImportError, OSError, ValueError):  # on Windows there is no limit
        import resource  # noqa: PLC0415

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _say_who_acts() -> None:
    """Write down on standard error who has changed what for everybody."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("intervalq.actions")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # no handler of this process is above it


def _tls(cert: str | None, key: str | None, client_ca: str | None) -> Tls | None:
    if cert is not None and key is not None:
        from intervalq.service import Tls  # noqa: PLC0415 - help must work without the extra

        return Tls(cert, key, client_ca)
    if (cert, key, client_ca) != (None, None, None):
        raise InvalidOption("give --tls-cert and --tls-key together, with --tls-client-ca or without")
    return None


def _say(addresses: Addresses, *, as_json_: bool) -> None:
    if as_json_:
        click.echo(as_json({"grpc": addresses.grpc, "http": addresses.http}))
        return
    for what, address in (("gRPC", addresses.grpc), ("HTTP/JSON", addresses.http)):
        if address is not None:
            click.echo(f"{what} at {address}")
