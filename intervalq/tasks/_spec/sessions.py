"""The rules of sessions: begin, heartbeat, the lapse of those that sent none, and end."""

from __future__ import annotations

from intervalq.tasks._spec.commands import Beat, Beaten, Begin, End
from intervalq.tasks._spec.table import Table
from intervalq.tasks._spec.transitions import freed, given_back


def begin(table: Table, command: Begin, now: int) -> None:
    """Begin a session, or begin it anew."""
    table.put_session(command.session._replace(started=now, beaten=now))


def beat(table: Table, command: Beat, now: int) -> Beaten:
    """Keep a session alive, and free the claims of those whose last heartbeat is too long ago."""
    mine = table.session(command.session)
    if mine is not None:
        table.put_session(mine._replace(beaten=now))
    lapsed = [
        session
        for session in table.sessions()
        if session.id != command.session and session.beaten + session.expiry < now
    ]
    for session in lapsed:
        table.remove_session(session.id)
        table.put([freed(row, now, session) for row in table.of_session(session.id)])
    table.sweep_marks(now)
    return Beaten(
        alive=mine is not None,
        claim_count=len(table.of_session(command.session)),
        lapsed=tuple(session.id for session in lapsed),
    )


def end(table: Table, command: End, now: int) -> None:
    """End a session, and give its claims back."""
    table.remove_session(command.session)
    table.put([given_back(row, now) for row in table.of_session(command.session)])
