"""The pictures of screens and pages in the documentation: `python tests/screens.py` makes them anew.

Each keeps what the screen had on it apart from numbers: its headings, columns and labels. Tests compare that
with the screens of now, so a picture of one that has changed is noticed. Pages need Chromium.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import anyio
from click.testing import CliRunner

from browser import Page, chromium
from intervalq import IntervalQueue
from intervalq._watch.reader import Reader
from intervalq.cli._app import app
from intervalq.cli._top.app import Top
from intervalq.service import Addresses, serve
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Modify

FOLDER: Final = Path(__file__).parent.parent / "docs" / "screens"
MAX_BYTES: Final = 100_000
SIZE: Final = 100, 30
"""Columns and lines of the terminal."""
_LOOKS: Final = 15
"""How many looks at a store the page shows in its picture, two seconds each."""

_LABELS: Final = {"h1", "h2", "th", "dt", "figcaption", "button"}


@asynccontextmanager
async def world(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A store in use: queues, paced and paused, tasks, a schedule. Yields what lets some jobs start."""
    api = IntervalQueue("api", rate="20/s", limits=["1500/min"], store=url, lookahead=None)
    mail = IntervalQueue("mail", rate="5/s", store=url)
    llm = IntervalQueue("llm", rate="50/s", each="20/s", store=url)
    queues = api, mail, llm, *(llm[key] for key in ("ann", "bob", "<script>eve</script>"))
    async with Tasks(url) as tasks:
        for queue in (*queues[1:2], *queues[3:]):
            await queue.run(_nothing)
        await mail.pause()
        for number in range(12):
            await tasks.insert("reports", number, delay=3600 * (number > 8))
        claim = await tasks.claim("reports")
        await claim.in_progress(progress=0.4, note="page 3 of 7")
        await tasks.schedule("nightly", "reports", 1, cron="0 3 * * *", timezone="Europe/Berlin")
        await dead(tasks)
        for _ in range(1000):
            await api.add(_nothing)

        async def work() -> None:
            goal = (await api.inspect()).current + 5
            while (await api.inspect()).current < goal:
                pass

        try:
            await work()
            yield work
        finally:
            for queue in queues:
                await queue.close(drain=False)


async def dead(tasks: Tasks) -> None:
    """Three tasks in a dead-letter queue."""
    for number in range(3):
        new = tasks.new("mails.dead", {"to": number}, id=f"mail-{number}", keep="1d")
        error = f"SMTPError: try {number + 1}"
        await tasks._apply(Modify(inserts=(new._replace(attempt=number + 1, error=error),)))


async def _nothing() -> None:
    pass


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[str]:
    """The address of the page of a service."""
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(url, grpc=None, http="127.0.0.1:0", grace=1, task_status=task_status, **options)

        yield f"http://{(await group.start(run)).http}/"
        group.cancel_scope.cancel()


# --- what is on a screen ----------------------------------------------------------------------------


class Labels(HTMLParser):
    """The labels of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in _LABELS:
            self._open.append("")

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in _LABELS and self._open:
            self.found.append(re.sub(r"[\d.,]+", "N", self._open.pop()))


def labels(page: str) -> list[str]:
    """What is on a page, apart from numbers: each label once, in their order."""
    return [*dict.fromkeys(Labels(page).found)]


def words(drawing: str) -> list[str]:
    """The words of a terminal's picture, sorted."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    found = re.findall(r"[A-Za-z]{4,}", " ".join(texts).replace("&#160;", " "))
    return sorted({*found})


def kept(name: str) -> list[str]:
    """What was on a screen when its picture was made."""
    path = FOLDER / name
    if path.suffix == ".svg":
        return words(path.read_text(encoding="utf-8"))
    from PIL import Image

    with Image.open(path) as image:
        found: list[str] = json.loads(image.info["labels"])
        return found


# --- making them ------------------------------------------------------------------------------------


async def terminal(url: str, work: Callable[[], Awaitable[None]], looks: int, log: Path) -> str:
    """The screen of `intervalq top`, as SVG that loads nothing."""
    reader = Reader.opened(url, [log])
    top = Top(reader, "postgresql://db.example/jobs", every=3600)
    async with top.run_test(size=SIZE) as pilot:
        for _ in range(looks):
            await work()
            await top.look()
        await pilot.pause()
        drawing = top.export_screenshot(title="intervalq top")
    await reader.aclose()
    drawing = re.sub(r"<!--.*?-->\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"terminal-\d+", "top", drawing)).replace(
        "Fira Code", "monospace"
    )


async def picture(name: str, page: Page, height: int) -> None:
    """Write what is to be seen of a page, with its labels."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    await page.do(
        "Emulation.setDeviceMetricsOverride", width=900, height=height, deviceScaleFactor=1, mobile=False
    )
    with Image.open(BytesIO(await page.picture())) as image:
        few = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    about = PngInfo()
    about.add_text("labels", json.dumps(labels(await page.see("document.documentElement.outerHTML"))))
    out = BytesIO()
    few.save(out, "PNG", optimize=True, pnginfo=about)
    assert len(out.getvalue()) < MAX_BYTES, f"{name} has {len(out.getvalue())} bytes"
    (FOLDER / name).write_bytes(out.getvalue())


async def sign_in(page: Page, token: str) -> None:
    """Give the page of a service a token; its form is there until it has one."""
    await page.see("sessionStorage.clear()")
    await page.until("!document.querySelector('#who').hidden")
    await page.see("document.querySelector('#token').focus()")
    await page.do("Input.insertText", text=token)
    await page.click("document.querySelector('#who button')")
    await page.until(
        "document.querySelector('#who').hidden && document.querySelectorAll('.queue').length > 0"
    )


async def show_tasks(page: Page, queue: str) -> None:
    """Show the tasks of a queue on the page of a service, anew."""
    await page.see("location.hash = ''")
    await page.until("document.querySelector('#of').hidden")
    await page.click(f"document.querySelector('[data-of=\"Show {queue}\"]')")
    await page.until("!document.querySelector('#of').hidden")


def access_file(folder: Path) -> Path:
    """An access file: the token `all` may do everything, the token `look` only read."""
    rules = {"look": '["read"]', "all": '["read", "administer", "change", "insert", "delete"]'}
    path = folder / "access.toml"
    path.write_text(
        "\n".join(
            f'[{token}]\ntoken_sha256 = "{sha256(token.encode()).hexdigest()}"\n'
            f'allow = [{{ queues = ["*"], actions = {actions} }}]'
            for token, actions in rules.items()
        )
    )
    return path


def starts_log(folder: Path) -> Path:
    """The execution log of a queue with some starts in two processes."""
    lines: list[dict[str, Any]] = [
        {"at": 1e9, "interval": 0.05, "tolerance": 0.005, "burst": 1, "max_running": None, "limits": []}
    ]
    for number in range(400):
        late = 0.0004 + 0.003 * (number % 37 == 0)
        due = 1e9 + number * 0.05
        lines.append({"ticket": number + 1, "due": due, "started": due + late})
    lines.append({"at": 1e9 + 20, "unused": {"late": 3, "away": 1}, "refused": 2})
    log = folder / "starts.jsonl"
    shards = ("worker-1:4242:1", "worker-2:4243:1")
    log.write_text(
        "".join(
            json.dumps({"queue": "api", "shard": shards[number // 16 % 2], **line}) + "\n"
            for number, line in enumerate(lines)
        )
    )
    return log


def report_page(folder: Path) -> Path:
    """The page of `intervalq report` about these."""
    log = starts_log(folder)
    out = folder / "report.html"
    done = CliRunner().invoke(app, ["report", str(log), "--output", str(out)])
    assert done.exit_code == 0, done.output
    return out


def audit_page(folder: Path) -> Path:
    """The page of an audit of a log with one fault of each kind, in a Spark of its own."""
    from pyspark.sql import SparkSession

    from spark.planted_logs import audited

    builder = SparkSession.builder.master("local[2]").config("spark.sql.codegen.wholeStage", "false")
    session = builder.getOrCreate()
    try:
        return audited(session).write(folder / "audit.html")
    finally:
        session.stop()


async def make(*names: str) -> None:
    """Make the pictures of these names; none: all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite://{folder}/state.db"
        if not names or "top" in names:
            async with world(url) as work:
                drawing = await terminal(url, work, 40, starts_log(folder))
                (FOLDER / "top.svg").write_text(drawing, encoding="utf-8")
        async with chromium(folder / "profile") as page:
            if not names or "page" in names:
                await _make_page(f"{url}2", folder, page)
            if not names or "report" in names:
                await page.open(report_page(folder).as_uri())
                await picture("report.png", page, 900)
            if not names or "audit" in names:
                await page.open(audit_page(folder).as_uri())
                await picture("audit.png", page, 1150)


async def _make_page(url: str, folder: Path, page: Page) -> None:
    options = {"access": access_file(folder), "logs": [starts_log(folder)]}
    async with world(url) as work, serving(url, **options) as address, anyio.create_task_group() as group:

        async def go_on() -> None:
            while True:
                await work()

        group.start_soon(go_on)
        await page.open(f"{address}#api")
        await sign_in(page, "all")
        await show_tasks(page, "mails.dead")
        await page.until(
            f"document.querySelector('.reached')?.getAttribute('d').split('L').length > {_LOOKS}"
        )
        await page.see("scrollTo(0, 0)")
        await picture("page.png", page, 1500)
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(make, *sys.argv[1:])
