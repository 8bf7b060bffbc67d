"""The tasks of one queue on the screen of `intervalq top`: chosen, filtered, and changed in bulk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Final

import anyio
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from intervalq._show import escaped
from intervalq._watch.edit import Make, cancelled, deleted, moved, retried
from intervalq._watch.reader import MAX_TASKS, Reader
from intervalq._watch.rows import NUMBERS, TASKS_OF, Row, rows_of_tasks
from intervalq._watch.task import many, named, value_lines
from intervalq.cli._top.ask import Ask, Confirm
from intervalq.cli._top.table import details, fill
from intervalq.errors import IntervalqError
from intervalq.tasks._claim.values import queue_name

_CHANGES: Final[dict[str, Make]] = {"Retry": retried, "Cancel": cancelled, "Delete": deleted}
_SHOWN: Final = 3
"""The maximum number of unchanged tasks for which to show the reason."""


class TasksOf(Screen[None]):
    """Reads the first tasks of a queue repeatedly. What is chosen stays chosen."""

    CSS = """
    TasksOf #title { height: 1; padding: 0 1; }
    TasksOf DataTable { height: 1fr; }
    TasksOf Input { display: none; }
    TasksOf Input.used { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("space", "choose", "Choose"),
        Binding("a", "choose_all", "All"),
        Binding("slash", "filter", "Filter"),
        Binding("v", "value", "Value"),
        Binding("r", "change('Retry')", "Retry"),
        Binding("c", "change('Cancel')", "Cancel"),
        Binding("m", "move", "Move"),
        Binding("d", "change('Delete')", "Delete"),
    ]

    def __init__(self, reader: Reader, queue: str, every: float) -> None:
        super().__init__()
        self._reader, self._queue, self._every = reader, queue, every
        self._rows: list[Row] = []
        self._chosen: set[str] = set()
        self._is_all = False  # whether all tasks of the queue are chosen, shown or not
        self._values: dict[str, Sequence[tuple[str, str]]] = {}
        self._trouble = ""
        self._turn = anyio.Lock()

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="title")
        yield Input(placeholder="filter")
        yield DataTable[Text](cursor_type="row")
        with VerticalScroll(id="detail"):
            yield Static()
        yield Footer()

    def on_mount(self) -> None:
        """See Textual."""
        for column in ("", *TASKS_OF):
            self._table.add_column(Text(column, justify="right" if column in NUMBERS else "left"))
        self._table.focus()
        self.run_worker(self._look_often())

    def on_data_table_row_highlighted(self) -> None:
        """See Textual: the cursor is on another row."""
        self._show_detail()

    def on_input_changed(self) -> None:
        """See Textual: the filter is another one."""
        self._show()

    def on_input_submitted(self) -> None:
        """See Textual: the filter is complete."""
        self._table.focus()

    # --- reading and showing ------------------------------------------------------------------------

    async def look(self) -> None:
        """Read the tasks, and show them."""
        async with self._turn:
            try:
                tasks = await self._reader.tasks_of(self._queue)
                claims = any(task.claimant for task in tasks)
                sessions = await self._reader.sessions() if claims else {}
            except IntervalqError as error:
                self._trouble = str(error)
            else:
                self._trouble = ""
                self._rows = rows_of_tasks(tasks, sessions, time.time())
                self._chosen &= {row.key for row in self._rows}
            if self.is_attached:
                self._show()

    async def _look_often(self) -> None:
        while True:
            await self.look()
            await anyio.sleep(self._every)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    @property
    def _filter(self) -> str:
        return self.query_one(Input).value.strip().lower()

    def _shown(self) -> list[Row]:
        return [row for row in self._rows if self._filter in " ".join(row.cells).lower()]

    def _row(self) -> Row | None:
        """The row under the cursor."""
        shown, at = self._shown(), self._table.cursor_row
        return shown[at] if 0 <= at < len(shown) else None

    def _show(self) -> None:
        marked = [
            row._replace(cells=("*" if self._is_all or row.key in self._chosen else "", *row.cells))
            for row in self._shown()
        ]
        fill(self._table, ("", *TASKS_OF), marked)
        first = f", the first {MAX_TASKS}" if len(self._rows) == MAX_TASKS else ""
        title = Text(f"tasks of {escaped(self._queue)}{first}", no_wrap=True, overflow="ellipsis")
        if self._trouble:
            title = Text(escaped(self._trouble), "bold red", no_wrap=True)
        self.query_one("#title", Static).update(title)
        self._show_detail()

    def _show_detail(self) -> None:
        row = self._row()
        facts = () if row is None else (*row.facts, *self._values.get(row.key, ()))
        self.query_one("#detail Static", Static).update(Text(details(facts)))

    # --- choosing and changing ----------------------------------------------------------------------

    def action_back(self) -> None:
        """Leave the filter, or this screen."""
        if self._filter or self.query_one(Input).has_focus:
            self.query_one(Input).value = ""
            self.query_one(Input).remove_class("used")
            self._table.focus()
        else:
            self.dismiss()

    def action_filter(self) -> None:
        """Show only tasks with a text in their id, state, key or error."""
        self.query_one(Input).add_class("used")
        self.query_one(Input).focus()

    def action_choose(self) -> None:
        """Choose the task under the cursor, or no longer."""
        if (row := self._row()) is not None:
            chosen = {each.key for each in self._shown()} if self._is_all else self._chosen
            self._chosen, self._is_all = chosen ^ {row.key}, False
            self._show()

    def action_choose_all(self) -> None:
        """Choose all tasks of the queue, or with a filter those that are shown; if they are chosen, none."""
        shown = {row.key for row in self._shown()}
        if self._is_all or (self._filter and shown <= self._chosen):
            self._chosen, self._is_all = self._chosen - shown, False
        elif self._filter:
            self._chosen |= shown
        else:
            self._is_all = True
        self._show()

    async def action_value(self) -> None:
        """Read the value of the task under the cursor."""
        if (row := self._row()) is None:
            return
        try:
            task = await self._reader.task(row.key)
        except IntervalqError as error:
            self.notify(escaped(str(error)), severity="error", markup=False)
        else:
            lines = [] if task is None else value_lines(task)
            self._values = {row.key: [(name, escaped(line)) for name, line in lines]}
            self._show_detail()

    def action_change(self, verb: str) -> None:
        """Change the chosen tasks, or else the one under the cursor, after asking."""
        self._ask(verb, _CHANGES[verb], self._ids())

    def action_move(self) -> None:
        """Move these tasks to another queue, after asking."""
        ids = self._ids()  # now: another row may come under the cursor while the name is typed

        def answered(to: str | None) -> None:
            if not to:
                return
            try:
                self._ask("Move", moved(queue_name(to)), ids, f" to {to}")
            except IntervalqError as error:
                self.notify(escaped(str(error)), severity="error", markup=False)

        if ids is None or ids:
            self.app.push_screen(Ask(escaped(f"Move {self._which(ids)} to which queue?")), answered)

    def _ids(self) -> list[str] | None:
        """The tasks to change: those chosen that are shown, or else the one under the cursor. None: all."""
        if self._is_all and not self._filter:
            return None
        if chosen := [row.key for row in self._shown() if self._is_all or row.key in self._chosen]:
            return chosen
        return [] if (row := self._row()) is None else [row.key]

    def _which(self, ids: list[str] | None) -> str:
        if ids is None:
            return f"all tasks of {self._queue}"
        return f"task {ids[0]}" if len(ids) == 1 else many(len(ids))

    def _ask(self, verb: str, make: Make, ids: list[str] | None, to: str = "") -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._change(verb, make, ids, to), name="change")

        if ids is None or ids:
            self.app.push_screen(Confirm(escaped(f"{verb} {self._which(ids)}{to}?")), answered)

    async def _change(self, verb: str, make: Make, ids: list[str] | None, to: str) -> None:
        edit = self._reader.edit(make)
        which = f"tasks of {self._queue}" if ids is None else named(ids)
        try:
            with self._reader.acting(verb.lower(), f"{which}{to}", of_tasks=True) as acts:
                try:
                    await (edit.all_of(self._queue) if ids is None else edit.these(ids, self._queue))
                finally:
                    acts.result = edit.result
        except IntervalqError as error:
            self.notify(escaped(str(error)), severity="error", markup=False)
        why = [f"{id_} {reason}" for id_, reason in [*edit.refused.items()][:_SHOWN]]
        more = [f"{len(edit.refused) - _SHOWN} more"] if len(edit.refused) > _SHOWN else []
        said = "; ".join([f"{verb}: {many(edit.done)}", *(f"not {each}" for each in (*why, *more))])
        self.notify(escaped(said), severity="warning" if edit.refused else "information", markup=False)
        self._chosen, self._is_all = set(), False
        await self.look()
