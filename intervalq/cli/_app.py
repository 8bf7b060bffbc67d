"""The group of all commands: version, shell completion, and how errors end a command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, ClassVar, Final

import click
from click.shell_completion import get_completion_class

from intervalq._observe.actions import keeping
from intervalq._show import escaped, warn
from intervalq.cli._options import examples
from intervalq.errors import IntervalqError

# A command's module is imported when it is used, so that `exec` doesn't wait for what only `demo` needs.
_COMMANDS: Final = {
    "run": "_run.command:run",
    "exec": "_run.exec:exec_",
    "report": "_report.command:report",
    "status": "_admin.command:status",
    "pause": "_admin.command:pause",
    "resume": "_admin.command:resume",
    "cool-down": "_admin.command:cool_down",
    "configure": "_admin.command:configure",
    "reclaim": "_admin.command:reclaim",
    "drop": "_admin.command:drop",
    "top": "_admin.top:top",
    "tasks": "_tasks.command:tasks",
    "work": "_work.command:work",
    "serve": "_serve.command:serve",
    "ledger": "_ledger.command:ledger",
    "schedule": "_schedule.command:schedule",
    "once": "_schedule.once:once",
    "pipeline": "_pipeline.command:pipeline",
    "doctor": "_doctor.command:doctor",
    "demo": "_demo.command:demo",
    "demo-api": "_demo.api:demo_api",
    "completion": "_app:completion",
}

_GROUPS: Final = ("tasks", "ledger", "schedule")

_POSIX: Final = {
    "_run.command:run",
    "_run.exec:exec_",
    "_admin.top:top",
    "_tasks.lock:lock",
    "_tasks.top:top",
    "_work.command:work",
    "_serve.command:serve",
    "_schedule.once:once",
    "_demo.command:demo",
    "_demo.api:demo_api",
}
"""Commands that can't do without the signals of POSIX."""
_HAS_SIGNALS: Final = hasattr(signal, "SIGHUP")


class Failed(click.ClickException):
    """An error shown to the user: one line, no traceback. `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code

    def show(self, file: IO[Any] | None = None) -> None:
        """See `click.ClickException`."""
        click.echo(f"intervalq: {escaped(self.message)}", file=file, err=True)


class Commands(click.Group):
    """A group that imports its commands by name."""

    known: ClassVar[dict[str, str]] = _COMMANDS
    """The place of each command: `module:name`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        del ctx
        return list(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        del ctx
        if cmd_name not in self.known:
            return None
        if not _HAS_SIGNALS and self.known[cmd_name] in _POSIX:
            return _refused(cmd_name)
        module, _, name = self.known[cmd_name].partition(":")
        command = getattr(import_module(f"intervalq.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`. An error names the group that has a command of this name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            for name in _GROUPS if self.known is _COMMANDS else ():
                group = self.get_command(ctx, name)
                if isinstance(group, click.Group) and args[0] in group.list_commands(ctx):
                    hint = f"{error.message} There is `intervalq {name} {args[0]}`."
                    raise click.UsageError(hint, ctx) from None
            raise


def _refused(name: str) -> click.Command:
    """A command that this platform can't run, so that the help of all others can be shown."""

    @click.command(name, help="Needs Linux or macOS.", context_settings={"ignore_unknown_options": True})
    @click.argument("args", nargs=-1, type=click.UNPROCESSED)
    def command(args: tuple[str, ...]) -> None:
        del args
        raise click.UsageError(f"`{name}` needs the signals of Linux or macOS: on Windows, run it in WSL")

    return command


def run_app(args: list[str] | None = None) -> int:
    """Run a command line (None: that of this process), and return the exit code."""
    try:
        code = app.main(args, prog_name="intervalq", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return 130  # as shells report a program that Ctrl-C ended
    except BrokenPipeError:
        # Nobody reads the output any more, and Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if (shown := shown_error(error)) is None:
            raise
        shown.show()
        return code_of(shown)
    return code if isinstance(code, int) else 0


def code_of(error: click.ClickException) -> int:
    """The exit code of a command that ended with this error."""
    return error.code if isinstance(error, Failed) else error.exit_code


def shown_error(error: BaseException) -> click.ClickException | None:
    """The error to show to the user; None: it is a bug, which should have its traceback."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a task group wraps its only error
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        return Failed(f"{os.fsdecode(error.filename)}: {error.strerror}")
    if isinstance(error, IntervalqError):
        # An argument is wrong (see intervalq.errors), or a part that the command needs isn't installed.
        return Failed(str(error), 2 if isinstance(error, ValueError | ImportError) else 1)
    return None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "seq 9 | intervalq run --name numbers --interval 200ms -- echo {}",
        "intervalq status",
        "intervalq demo",
    ),
)
@click.version_option(package_name="intervalq", prog_name="intervalq")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Start at most one job per interval, across any number of processes and machines.

    What a command changes for everybody is written down in actions.jsonl in your state folder, or in the file
    that INTERVALQ_ACTIONS names.
    """
    ctx.with_resource(_actions_kept())


@contextmanager
def _actions_kept() -> Iterator[None]:
    """Keep in a file what the command changes for everybody."""
    with keeping() as keeper:
        try:
            yield
        finally:
            if keeper.trouble:
                warn(
                    f"{keeper.trouble}: what was done isn't written down; name another file by "
                    "INTERVALQ_ACTIONS"
                )


@click.command(
    epilog=examples(
        'eval "$(intervalq completion bash)"',
        'eval "$(intervalq completion zsh)"',
        "intervalq completion fish > ~/.config/fish/completions/intervalq.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell.

    To install it, put the line for your shell below into ~/.bashrc or ~/.zshrc; for fish, run its line once.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "intervalq", "_INTERVALQ_COMPLETE").source())
