"""`intervalq demo-api`: a stand-in for a rate-limited API, which reports how it was really called."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import anyio
import click

from intervalq._show import as_json, exact, seconds
from intervalq._spec import parse
from intervalq.cli._app import Failed
from intervalq.cli._options import examples, json_option
from intervalq.demo.api import DemoAPI


@click.command("demo-api", epilog=examples("intervalq demo-api --port 8020 --limit 20 --window 1s"))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on. 0, the default: any free port.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Calls that are accepted in any window.",
)
@click.option("--window", default="1s", show_default=True, metavar="D", help="Length of the window.")
@json_option
def demo_api(*, port: int, limit: int, window: str, as_json_: bool) -> None:
    """Serve an API that answers 429 to too many calls.

    It prints its URL and serves GET /countries/XX on this machine until Ctrl-C. Then it reports how it was
    called. GET /report shows the same report at any time.
    """
    length = parse.duration(window, least=1000, what="window") / 1e6
    api = DemoAPI(limit=limit, window=length, port=port)
    try:
        anyio.run(_serve, api)
    except OSError as error:
        raise Failed(f"port {port}: {error.strerror or error}") from None
    report = api.meter.report()
    click.echo(as_json(report) if as_json_ else summary(report))


async def _serve(api: DemoAPI) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with api:
            click.echo(api.url)
            async for _ in signals:
                return


def summary(report: Mapping[str, Any]) -> str:
    """The API's report in a few words."""
    calls, rejected = report["calls"], report["rejected"]
    if not calls:
        return "0 calls"
    share = f" ({rejected / calls:.0%})" if rejected else ""
    words = f"{calls} calls, {rejected} rejected{share}; "
    words += f"at most {report['most_in_window']} in any {exact(report['window'])}"
    gaps = report["gaps"]
    if gaps["min"] is None:
        return words
    # The smallest gap shows how evenly calls travelled, not how they began.
    return f"{words}; gaps between arrivals: median {seconds(gaps['p50'])}, 1% under {seconds(gaps['p1'])}"
