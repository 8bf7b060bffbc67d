"""Random processes of keys under one rate, whose windows are judged by brute force on both levels.

    python tests/keyed_window_oracle.py 100000       # this many runs; prints the seeds that exceeded a limit

As `window_oracle`: the judge has the real time and cost of every start, and counts every window of every
limit, of all keys together and of each key. The processes use `KeyStore`, as shards do. Jobs begin at any
time that a grant allows, and take at most what their tickets did, which is settled later. Processes die, ask
again too late, and repeat questions; the queue or a key is paused; the common pace is changed; the store's
clock is set back.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from intervalq import rules
from intervalq._keys.limits import Counting
from intervalq._keys.store import KeyStore
from intervalq._keys.view import CommonView
from intervalq.keyed import Common, KeyedAnswer, apply_keyed
from intervalq.rules import (
    FOREVER,
    STARTS,
    Advance,
    Answer,
    Command,
    Configure,
    HighWaterMark,
    Hold,
    Limit,
    Reclaim,
    Resume,
    Settings,
    Settled,
    Slot,
    State,
    Units,
)
from simulation.messages import result_of
from window_judge import beginning
from window_oracle import SECOND, T0


@dataclass
class Start:
    """A job that began, in real time, and what it really took by unit."""

    at: int
    key: str
    units: dict[str, int]
    behind: int


@dataclass
class Granted:
    """A granted slot whose job hasn't begun yet, in real time."""

    slot: Slot
    opens: int
    closes: int
    settled: Settled


class Records:
    """A store that keeps its records in a dictionary, by a given clock."""

    url = "memory://"

    def __init__(self) -> None:
        self.states: dict[str, State | None] = {}
        self.now = T0
        self.steps = 0

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        del now
        self.states[queue], answer = rules.apply(self.states.get(queue), command, self.now)
        return answer

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        del now
        made = apply_keyed(self.states.get(queue), self.states.get(known.record), command, known, self.now)
        self.states[queue], self.states[known.record], answer = made
        self.steps += 1
        for state in (
            self.states.values() if self.steps % 16 == 0 else ()
        ):  # otherwise it would take most of the time
            assert state is None or State.from_dict(state.to_dict()) == state
        return answer

    async def names(self) -> list[str]:
        return [*self.states]

    async def aclose(self) -> None: ...


@dataclass
class Process:
    """What a process of a key has."""

    key: str
    store: KeyStore
    state: State | None = None
    tickets: list[Slot] = field(default_factory=list)
    granted: list[Granted] = field(default_factory=list)
    unsettled: list[Settled] = field(default_factory=list)


class Run:
    """One queue with some keys."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random, self.records = seed, Random(seed), Records()
        self.again = Random(f"again {seed}")
        self.behind, self.now = 0, T0
        pick = self.random.choice
        interval = pick((1_000, 20_000, 100_000))
        more = pick((0, 0, 1, 1, 3))  # how much all keys together may take
        limits = self._limits(interval, more, fixed=seed % 3 == 0) if more else ()
        self.common, self.own = Settings(interval, limits=limits), self._limits(interval, 1, fixed=False)
        each = pick((0, 0, interval, 3 * interval))
        limits = (*self.own, *self.common.limits)
        self.settings = Settings(each or interval, ephemeral=True, limits=limits, own=len(self.own))
        self.own_pace = each > 0
        self.trouble, self.prompt = pick((0, 0.2, 1, 3)), pick((0.5, 0.8, 1))
        self.backlog, self.paces = pick((1, 1, 3, 8)), pick((False, False, True))
        self.shares = pick(((2,), (0, 2, 2), (0, 1, 2)))
        self.view = CommonView()
        self.processes = [self._process(key) for key in pick(("a", "ab", "aab", "abc"))]
        self.starts: list[Start] = []
        self.counts: Counter[str] = Counter()

    def _limits(self, interval: int, more: int, *, fixed: bool) -> tuple[Limit, ...]:
        pick = self.random.choice
        made: dict[tuple[str, int], Limit] = {}
        for unit in self.random.sample([STARTS, STARTS, "tokens", "bytes"], self.random.randint(1, 2)):
            window = interval * pick((3, 10, 50, 200))
            most = more * (pick((1, 2, 5, 20)) if unit == STARTS else pick((10, 50, 200)))
            if fixed and window % SECOND:
                window = pick((SECOND, 10 * SECOND))
            made[unit, window] = Limit(
                most, window, unit, pick((0, 0, 1_000)), pick((None, 0)) if fixed else None
            )
        return tuple(made.values())

    def _process(self, key: str) -> Process:
        made = KeyStore(
            self.records, "q", self.common, own_pace=self.own_pace, weight=self.random.choice((1, 1, 3)),
            view=self.view, on_mismatch="adopt",
        )  # fmt: skip
        return Process(key, made)

    def step(self) -> None:
        """Let something happen."""
        process = self.random.choice(self.processes)
        takes = 5 if len(process.tickets) < self.backlog else 0
        (kind,) = self.random.choices((self._take, self._ask, self._other), (takes, 20, self.trouble))
        kind(min(self.processes, key=self._comes) if kind == self._ask else process)
        for each in self.processes:
            self._begin(each)

    def _comes(self, process: Process) -> int:
        """When the next slot comes that a process has to ask for, in real time."""
        if not process.tickets or process.state is None:
            return FOREVER
        return process.tickets[0].due + process.state.held_total + self.behind

    def pass_time(self) -> None:
        """Let time pass, mostly to about an instant that matters."""
        random, kind = self.random, self.random.random()
        if kind < 0.3:
            return
        instants = [each.opens for process in self.processes for each in process.granted[:1]]
        instants += [self._comes(process) for process in self.processes]
        if kind > 0.95:
            instants = [
                each.closes + random.choice((0, 1)) for process in self.processes for each in process.granted
            ]
        if ahead := [at for at in instants if self.now < at < FOREVER]:
            self.now = min(ahead) + random.choice((0, 0, 0, 1, self.common.interval // 20))
        elif kind > 0.93:
            width = random.choice([self.common.interval, *(limit.window for limit in self.settings.limits)])
            self.now += random.choice((1, random.randint(0, 2 * width), width // 64))
        self.records.now = self.now - self.behind
        for process in self.processes:
            self._begin(process)

    def _send(self, process: Process, command: Command) -> Answer:
        """Send a command as the connection of a shard does."""
        while True:
            state = process.state
            command = replace(
                command,
                settings=state.settings if state else self.settings,
                generation=state.generation if state and not isinstance(command, Hold) else None,
                nonce=f"g{self.random.random()}",
            )
            answer = result_of(process.store.apply(f"q:{process.key}", command, None))
            if state and answer.state and answer.state.generation != state.generation:
                process.tickets, process.granted = [], []  # of a record that is gone
            process.state = answer.state
            if not answer.refused:
                return answer

    def _take(self, process: Process) -> None:
        count = self.random.choice((1, 1, 2, 5, 12) if self.backlog > 1 else (1,))
        given = self.random.choice((0, count, count))
        self._advance(process, take=count, units=tuple(self._units() for _ in range(given)))

    def _units(self) -> Units:
        most = dict[str, int]()
        for limit in self.settings.limits:
            most[limit.unit] = min(limit.most, most.get(limit.unit, limit.most))
        taken = {unit: self.random.choice((0, 1, some // 6, some // 3, some)) for unit, some in most.items()}
        return tuple([1 if limit.unit == STARTS else taken[limit.unit] for limit in self.settings.limits])

    def _ask(self, process: Process) -> None:
        count = self.random.randint(1, 4)
        lost = any(each.closes < self.now for each in process.granted)
        if lost:  # too late: granted again, with all slots behind it
            again = [each.slot for each in process.granted]
            process.granted, count = [], len(again)
            process.tickets = sorted([*again, *process.tickets])
        if lost or self._comes(process) <= self.now + self.settings.interval:
            self._advance(process, slots=tuple(process.tickets[:count]))

    def _advance(
        self,
        process: Process,
        slots: tuple[Slot, ...] = (),
        take: int = 0,
        units: tuple[Units, ...] = (),
        release: tuple[Slot, ...] = (),
    ) -> None:
        random, step, state = self.random, self.settings.interval, process.state
        if process.tickets and random.random() < 0.1:
            release = (process.tickets.pop(),)
        some = random.choice((0, 1, 1, 5))
        settled, process.unsettled = process.unsettled[:some], process.unsettled[some:]
        notice = random.choice((0, 0, 10, 10, step // 20, step // 3, 3 * step))
        command = Advance(
            release=release,
            slots=tuple([slot for slot in slots if slot not in release]),
            take=take,
            units=units,
            settled=tuple(settled),
            notice=notice,
            reach=notice + random.choice((0, step, SECOND)),
            until=None if random.random() < 0.3 else self.records.now + SECOND,
            ahead=random.choice((None, step)),
            high_water_mark=None
            if state is None
            else HighWaterMark(state.ticket, state.due, state.late_total),
            error=random.choice((0,) * 19 + (300,)),
        )
        answer = self._send(process, command)
        if random.random() < 0.05 and not take:  # the answer was lost
            answer = self._send(process, replace(command, settled=()))
        missed = {slot.ticket: slot.units for slot in command.slots}
        asked = [*(missed[ticket] for ticket in answer.missed), *units]
        new = [
            slot._replace(units=asked[place] if place < len(asked) else ())
            for place, slot in enumerate(answer.taken)
        ]
        self._took(process, command, answer, new)

    def _took(self, process: Process, command: Advance, answer: Answer, new: list[Slot]) -> None:
        state = answer.state
        assert state is not None
        slots = {slot.ticket: slot for slot in (*command.slots, *new)}
        tickets = [*answer.granted, *(slot.ticket for slot in new[: answer.begun])]
        gone = {*answer.granted, *answer.missed, *(slot.ticket for slot in command.release)}
        kept = [slot for slot in process.tickets if slot.ticket not in gone]
        process.tickets = sorted([*kept, *new[answer.begun :]])
        self._unused(process, [slots[ticket] for ticket in answer.missed], state)
        counts: Counting = process.store.counts_by(state)
        for number, ticket in enumerate(tickets):
            instant = slots[ticket].due + state.held_total
            opens = self.now if answer.at_once and not number else max(self.now, instant + self.behind)
            closes = instant + self.behind + state.tolerance
            process.granted.append(Granted(slots[ticket], opens, closes, counts.settled(instant)))

    def _unused(self, process: Process, missed: list[Slot], state: State) -> None:
        """Note which slots nobody will use, as `Answers` does; some of those that are over are given up."""
        over = [each for each in process.granted if each.closes < self.now and self.again.random() < 0.3]
        for each in over:
            process.granted.remove(each)
        for slot in (*missed, *(each.slot for each in over)):
            process.store.unused(slot, len(self.own))
            self.counts["unused"] += 1
        alive = [*process.tickets, *(each.slot for each in process.granted)]
        process.store.keep_from(min([slot.ticket for slot in alive], default=state.ticket + 1))

    def _begin(self, process: Process) -> None:
        """Begin a job that may begin, at any time of its grant."""
        limits = self.settings.limits
        for each in [each for each in process.granted if each.opens <= self.now <= each.closes]:
            if self.random.random() > self.prompt:
                continue
            process.granted.remove(each)
            taken = each.slot.units or tuple([int(limit.unit == STARTS) for limit in limits])
            share = self.random.choice(self.shares)
            took = tuple(
                [
                    some if limit.unit == STARTS else some * share // 2
                    for limit, some in zip(limits, taken, strict=True)
                ]
            )
            units = {limit.unit: some for limit, some in zip(limits, took, strict=True)}
            self.starts.append(Start(self.now, process.key, units, self.behind))
            more = tuple([real - some for real, some in zip(took, taken, strict=True)])
            if any(more):
                process.unsettled.append(each.settled._replace(more=more))

    def _other(self, process: Process) -> None:
        random, kind = self.random, self.random.randrange(9)
        if self.paces and random.random() < 0.7:
            kind = 8
        length = random.choice((1, SECOND, 20 * SECOND, FOREVER))
        on: Literal["q", "key"] = random.choice(("q", "q", "key"))
        pause: Command = Hold(length=length) if kind < 1 else Resume()
        if kind < 4 and on == "key":
            self._send(process, pause)
        elif kind < 4:
            result_of(self.records.apply("q", pause))
        elif kind == 4:  # it died
            self.processes[self.processes.index(process)] = self._process(process.key)
        elif kind == 5 and process.state is not None:
            self._send(process, Reclaim())
        elif kind == 6:
            self.behind += random.choice((1, SECOND, 100 * SECOND))
            self.records.now = self.now - self.behind
            for each in self.processes:  # they give up their slots
                each.tickets, each.granted = [], []
        elif kind == 7:  # nobody waits any more
            unused, process.tickets = tuple(process.tickets), []
            self._advance(process, release=unused)
        else:
            interval = random.choice((1_000, 20_000, 100_000))
            result_of(self.records.apply("q", Configure(interval=interval)))

    def over(self) -> list[str]:
        """Every limit that was exceeded in any window; each window ends with a start."""
        found = [line for limit in self.common.limits for line in self._over(limit, self.starts, "all keys")]
        for key in sorted({start.key for start in self.starts}):
            mine = [start for start in self.starts if start.key == key]
            found += [line for limit in self.own for line in self._over(limit, mine, f"key {key}")]
        return found

    def _over(self, limit: Limit, starts: list[Start], whose: str) -> list[str]:
        for place, last in enumerate(starts):
            since = beginning(limit, last.at, last.behind)
            counted = sum(start.units.get(limit.unit, 0) for start in starts[: place + 1] if start.at > since)
            if last.units.get(limit.unit) and counted > limit.most:
                return [f"seed {self.seed}: {counted} of {limit} of {whose} before {last.at - T0}"]
        return []


def run(seed: int, steps: int = 300) -> Run:
    """Make one run."""
    made = Run(seed)
    for _ in range(steps):
        made.step()
        made.pass_time()
    return made


def main() -> None:
    """Make as many runs as requested."""
    starts = bad = 0
    for seed in range(int(sys.argv[1])):
        made = run(seed)
        starts += len(made.starts)
        for line in made.over():
            bad += 1
            print(line, flush=True)
    print(f"{sys.argv[1]} runs, {starts} starts, {bad} over a limit")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
