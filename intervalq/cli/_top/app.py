"""The screen of `intervalq top`, made with Textual: queues, tasks, schedules, workers, and what was done."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, NamedTuple

import anyio
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from intervalq import QueueState
from intervalq._show import escaped, seconds
from intervalq._watch import rows
from intervalq._watch.follow import Gaps
from intervalq._watch.rates import Point, Rates
from intervalq._watch.reader import Reader
from intervalq._watch.rows import Row
from intervalq.cli._top.ask import Ask, Confirm
from intervalq.cli._top.table import LABEL, details, fill
from intervalq.cli._top.tasks import TasksOf
from intervalq.errors import IntervalqError
from intervalq.schedules import ScheduleInfo

_LOW: Final = 16
"""The height of a screen, in lines, below which there is no room for the details."""

_BARS: Final = "▁▂▃▄▅▆▇█"


class View(NamedTuple):
    """What one tab shows."""

    title: str
    columns: tuple[str, ...]
    read: Callable[[], Awaitable[list[Row]]]


class Top(App[None]):
    """Reads what its present view shows, repeatedly. If the store is unreachable, the last reading stays."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #about { height: 1; padding: 0 1; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    DataTable { height: 1fr; }
    #detail { height: auto; max-height: 50%; border-top: solid $primary; padding: 0 1; }
    Confirm, Ask { align: center middle; }
    .question { width: auto; max-width: 90%; height: auto; padding: 1 2; border: solid $primary; }
    .question Static { width: auto; max-width: 100%; }
    .question Input { width: 40; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("p", "pause", "Pause, resume"),
        Binding("w", "weigh", "Weight"),
        Binding("f", "fire", "Run now"),
        *(Binding(str(place + 1), f"view({place})", show=False) for place in range(5)),
    ]

    def __init__(self, reader: Reader, url: str, *, name: str | None = None, every: float = 1.0) -> None:
        """`url`: of the store, without secrets. `name`: a queue to show alone."""
        super().__init__()
        self._reader, self._url, self._only, self._every = reader, url, name, every
        self._rates = Rates()
        self._views = (
            View("Queues", rows.QUEUES, self._read_queues),
            View("Tasks", rows.TASKS, self._read_tasks),
            View("Schedules", rows.SCHEDULES, self._read_schedules),
            View("Workers", rows.WORKERS, self._read_workers),
            View("Actions", rows.ACTIONS, self._read_actions),
        )
        self._rows: list[list[Row]] = [[] for _ in self._views]
        self._trouble = ""
        self._looked = time.monotonic()
        self._turn = anyio.Lock()

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="about")
        with TabbedContent():
            for place, view in enumerate(self._views):
                with TabPane(view.title, id=f"view{place}"):
                    yield DataTable[Text](cursor_type="row", id=f"table{place}")
        with VerticalScroll(id="detail"):
            yield Static()
        yield Footer()

    def on_mount(self) -> None:
        """See Textual."""
        for place, view in enumerate(self._views):
            table = self._table(place)
            for column in view.columns:
                table.add_column(Text(column, justify="right" if column in rows.NUMBERS else "left"))
        self._table(0).focus()
        self.run_worker(self._look_often())
        self.set_interval(1, self._show_about)

    def on_resize(self, event: Resize) -> None:
        """See Textual."""
        self.query_one("#detail").display = event.size.height >= _LOW

    def on_tabbed_content_tab_activated(self) -> None:
        """See Textual: another view is shown."""
        self._table(self._place).focus()
        self.run_worker(self.look())

    def on_data_table_row_selected(self) -> None:
        """See Textual: Enter on a queue of tasks shows these."""
        if self._shows_tasks() and (row := self._row()) is not None:
            self.push_screen(TasksOf(self._reader, row.key, self._every))

    def on_data_table_row_highlighted(self) -> None:
        """See Textual: the cursor is on another row."""
        self._show_detail()

    # --- reading ------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read what the present view shows, and show it."""
        async with self._turn:
            place = self._place
            try:
                self._rows[place] = await self._views[place].read()
            except IntervalqError as error:
                self._trouble = str(error)
            else:
                self._trouble, self._looked = "", time.monotonic()
                self._show_rows(place)
            self._show_about()
            self._show_detail()

    async def _look_often(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(self._every)

    async def _read_queues(self) -> list[Row]:
        looked = await self._reader.look(self._only)
        self._rates.take(looked.states)
        return rows.queue_rows(looked, self._rates, self._reader.logs)

    async def _read_tasks(self) -> list[Row]:
        return rows.task_rows(await self._reader.counts())

    async def _read_schedules(self) -> list[Row]:
        return rows.schedule_rows(await self._reader.schedules())

    async def _read_workers(self) -> list[Row]:
        return rows.worker_rows(await self._reader.workers(), time.time())

    async def _read_actions(self) -> list[Row]:
        return rows.action_rows(await self._reader.actions(), time.time())

    # --- showing ------------------------------------------------------------------------------------

    @property
    def _place(self) -> int:
        return int(self.query_one(TabbedContent).active.removeprefix("view") or 0)

    def _shows_tasks(self) -> bool:
        return self._views[self._place].columns is rows.TASKS

    def _table(self, place: int) -> DataTable[Text]:
        return self.query_one(f"#table{place}", DataTable)

    def _row(self) -> Row | None:
        """The row under the cursor."""
        place = self._place
        at = self._table(place).cursor_row
        return self._rows[place][at] if 0 <= at < len(self._rows[place]) else None

    def _show_rows(self, place: int) -> None:
        """Fill the table of a view."""
        fill(self._table(place), self._views[place].columns, self._rows[place])

    def _show_about(self) -> None:
        ago = time.monotonic() - self._looked
        text = Text(f"intervalq top  {escaped(self._url)}", no_wrap=True, overflow="ellipsis")
        if self._trouble:
            text = Text(f"seen {seconds(ago)} ago: {escaped(self._trouble)}", "bold red", no_wrap=True)
        elif ago > 2 * self._every + 2:
            text.append(f"  seen {seconds(ago)} ago, waiting for the store", "bold red")
        self.query_one("#about", Static).update(text)

    def _show_detail(self) -> None:
        row = self._row()
        facts = [] if row is None else [*row.facts]
        if row is not None and self._shows_tasks():
            facts.append(("Enter", f"shows the tasks of {escaped(row.key)}"))
        if row is not None and row.gaps is not None:
            facts.insert(0, ("gaps", histogram(row.gaps)))
        if row is not None and row.points:
            facts.insert(0, ("starts", bars(row.points, self.size.width - LABEL - 6)))
        self.query_one("#detail Static", Static).update(Text(details(facts)))

    # --- changing -----------------------------------------------------------------------------------

    def action_view(self, place: int) -> None:
        """Show another view."""
        self.query_one(TabbedContent).active = f"view{place}"

    def action_pause(self) -> None:
        """Pause or resume the queue or schedule under the cursor, after asking."""
        subject = None if (row := self._row()) is None else row.subject
        if isinstance(subject, QueueState):
            verb, name = "Resume" if subject.is_held else "Pause", subject.name
            self._ask(verb, "queue", name, lambda: self._reader.pause(name, resume=verb == "Resume"))
        elif subject is not None:
            self._change(subject, "Resume" if subject.paused else "Pause")

    def action_weigh(self) -> None:
        """Change the weight of the key under the cursor."""
        subject = None if (row := self._row()) is None else row.subject
        if not isinstance(subject, QueueState) or ":" not in subject.name:
            return
        name = subject.name

        def answered(given: str | None) -> None:
            if given and given.isdecimal() and len(given) < 10:  # `int` refuses thousands of digits
                self._do("Configure", "queue", name, lambda: self._reader.weigh(name, int(given)))
            elif given:
                self.notify(f"{escaped(given)} is not a whole number", severity="error", markup=False)

        question = f"Starts of {escaped(name)} in its turn, for all processes; 0: each process has its own"
        self.push_screen(Ask(question), answered)

    def action_fire(self) -> None:
        """Run the schedule under the cursor now, after asking."""
        if (row := self._row()) is not None and isinstance(row.subject, ScheduleInfo):
            self._change(row.subject, "Fire")

    def _change(self, schedule: ScheduleInfo, verb: str) -> None:
        self._ask(
            verb, "schedule", schedule.name, lambda: self._reader.change_schedule(schedule, verb.lower())
        )

    def _ask(self, verb: str, kind: str, name: str, change: Callable[[], Awaitable[None]]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._do(verb, kind, name, change)

        self.push_screen(Confirm(f"{verb} {escaped(name)}, for all processes?"), answered)

    def _do(self, verb: str, kind: str, name: str, change: Callable[[], Awaitable[None]]) -> None:
        async def do() -> None:
            try:
                with self._reader.acting(verb.lower(), f"{kind} {name}"):
                    await change()
            except IntervalqError as error:
                self.notify(escaped(str(error)), severity="error", markup=False)
            else:
                self.notify(f"{verb} {escaped(name)}: done", markup=False)
                await self.look()

        self.run_worker(do(), name="change")


def bars(points: Sequence[Point], width: int) -> str:
    """Rates over time as a line of bars, the last one at the right; a full bar is the possible rate."""
    shown = points[-max(1, width) :]
    highest = max([point.reached for point in shown] + [point.possible or 0.0 for point in shown])
    if not highest:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(7, int(8 * point.reached / highest))] for point in shown)


def histogram(gaps: Gaps) -> str:
    """Gaps from 0 to 2 intervals as bars, by their logarithms; a line stands where the promise is."""
    highest = math.log1p(max(gaps.counts))
    text = "".join(
        _BARS[min(7, int(8 * math.log1p(count) / highest))] if count else " " for count in gaps.counts
    )
    if gaps.promise is None:
        return f"0 {text} 2 intervals and more"
    place = round(gaps.promise / 2 * (len(text) - 1))
    return f"0 {text[:place]}\N{BOX DRAWINGS LIGHT VERTICAL}{text[place:]} 2 intervals and more"
