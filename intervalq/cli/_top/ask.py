"""Questions of `intervalq top`."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Confirm(ModalScreen[bool]):
    """Asks whether to do something."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """See Textual."""
        with Vertical(classes="question"):
            yield Static(Text(self._question))
            yield Static(Text("y: yes   n: no"))


class Ask(ModalScreen[str]):
    """Asks for a line of text; empty: nothing was given."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "Back")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """See Textual."""
        with Vertical(classes="question"):
            yield Static(Text(self._question))
            yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """See Textual."""
        self.dismiss(event.value.strip())
