"""Another judge of logs, in plain Python, with one list for the whole log; and random logs for it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from spark import planted_logs as logs


def random_log(queue: str, dice: random.Random) -> list[logs.Row]:
    """Slots about a second apart, and starts that may be blocks away from them."""
    rows: list[logs.Row] = []
    due = logs.FIRST + dice.randrange(10)
    ticket = 1
    for number in range(dice.randrange(1, 40)):
        at = due + dice.choice([0.0, dice.random() / 10, dice.random() * 3, dice.uniform(-9, 9)])
        row = logs.start(queue, number) | {"due": due, "ticket": ticket, "started": at, "host": None}
        row["ended"] = at + dice.choice([0.2, 3, 15]) * dice.random()
        if dice.random() < 0.1:
            row |= {"refused": True, "retry_after": dice.uniform(0, 12)}
        rows.append(row)
        due += dice.choice([0, 0.5, 1, 1, 1, 1, 1, 2, 5, 30, 70])
        ticket = max(1, ticket + dice.choice([-3, 0, 1, 1, 1, 1, 1, 1, 2, 4]))
    dice.shuffle(rows)
    return rows


def judge(rows: list[logs.Row], *, reach: int, most: int, grace: float) -> dict[str, int]:
    """The same checks in plain Python, with one list for the whole log."""
    found: Counter[str] = Counter()
    starts = sorted(rows, key=lambda row: (row["started"], row["due"], row["ticket"]))
    for index, row in enumerate(starts):
        at = row["started"]
        if index and at - starts[index - 1]["started"] < 0.9 - 5e-7:
            found["gap_short"] += 1
        if index and starts[index - 1]["due"] > row["due"] + 5e-7:
            found["order_inverted"] += 1
        if index >= reach and at - starts[index - reach]["started"] < reach - 1.2:
            found["crowded"] += 1
        found["over_max_running"] += sum(other["ended"] > at for other in starts[: index + 1]) > most
        found["cool_down_broken"] += any(
            other["ended"] + grace < at < other["ended"] + other["retry_after"]
            for other in rows
            if other["refused"]
        )
    known = {(row["due"], row["ticket"]) for row in rows}
    wrong = reused(known)
    found["ticket_twice"] = len(wrong)
    found["queue_restarted"] = 0
    slots = [
        (row["due"], 0 if (row["due"], row["ticket"]) in wrong else row["ticket"], row["started"])
        for row in rows
    ]
    for (before, earlier, _), (due, ticket, _) in pairwise(sorted(slots)):
        step, skipped = due - before, ticket - earlier
        if step < 5e-7:
            found["slot_shared" if skipped or not ticket else "slot_twice"] += 1
        else:
            found["slots_close"] += step < 0.9 - 2e-6
        if earlier and ticket:
            found["tickets_unused"] += max(0, skipped - 1)
            if skipped < 0 and step >= 5e-7:
                found["queue_restarted" if step >= 60 or ticket == 1 else "slot_order"] += 1
    return {kind: count for kind, count in found.items() if count}


def reused(known: set[tuple[float, int]]) -> set[tuple[float, int]]:
    """The slots whose ticket is another slot's, by its neighbours."""
    slots = sorted(known)
    restarts = [
        due
        for (before, earlier), (due, ticket) in pairwise(slots)
        if due - before >= 5e-7 and ticket < earlier and (due - before >= 60 or ticket == 1)
    ]
    of: dict[tuple[int, int], list[float]] = {}
    for due, ticket in slots:
        of.setdefault((sum(at <= due for at in restarts), ticket), []).append(due)
    several = {ticket: dues for ticket, dues in of.items() if len(dues) > 1}
    pieces = {due // 5 + more for dues in several.values() for due in dues for more in (-1, 0, 1)}
    line = [
        (due, ticket)
        for due, ticket in slots
        if due // 5 in pieces and (sum(at <= due for at in restarts), ticket) not in several
    ]
    wrong = set()
    for (_, ticket), dues in several.items():
        fitting = [
            due
            for due in dues
            if max([one for one in line if one[0] < due], default=(0, 0))[1]
            < ticket
            < min([one for one in line if one[0] >= due], default=(0, ticket + 1))[1]
        ]
        mine = (fitting or dues)[0]
        wrong |= {(due, ticket) for due in dues if due != mine}
    return wrong
