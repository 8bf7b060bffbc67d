"""Random shards on one record with limits, judged by brute force: when did jobs begin, how many in a window?

    python tests/window_oracle.py 1000000            # this many runs; prints the seeds that exceeded a limit

The judge knows nothing of cells: it has the real time and cost of every start, and counts every window. Jobs
begin at any time that a grant allows, and take at most what their tickets did, which is settled later; shards
die, ask again too late, give slots back, hold the queue, change its limits, and repeat a question whose
answer was lost; the store's clock is set back. After a change of limits, starts are judged whose tickets were
issued since; earlier ones count as far as a limit of the same unit has counted them. A job that takes more
than a limit now allows counts as the whole limit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from random import Random

from intervalq import rules
from intervalq._spec.configure import reordered
from intervalq._spec.standing import placed
from intervalq.rules import (
    FOREVER,
    STARTS,
    Advance,
    Answer,
    Command,
    Configure,
    Finish,
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
from unused_slots import Unused
from window_judge import Era, Start, beginning

SECOND = 1_000_000
T0 = 1_000_000_000 * SECOND


@dataclass
class Granted:
    """A granted slot whose job hasn't begun yet."""

    slot: Slot
    opens: int
    closes: int
    lag: int


@dataclass
class Run:
    """One record, and all shards that use it."""

    seed: int
    fixed: bool = False  # some windows are
    full: bool = False  # the queue is, often, while jobs wait long for slots that were granted
    random: Random = field(init=False)
    now: int = T0  # real time
    behind: int = 0  # how far the store's clock was set back
    state: State | None = None
    tickets: list[list[Slot]] = field(default_factory=list)
    granted: list[list[Granted]] = field(default_factory=list)
    unsettled: list[list[Settled]] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    mark: HighWaterMark | None = None
    steps: int = 0
    running: list[int] = field(
        default_factory=list
    )  # tickets whose leases may end: of jobs that began, and of unused slots
    moved: int = 0  # slots that came sooner

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.edges = Random(f"edges {self.seed}")
        self.settings = self._settings()
        self.lease = (100 * SECOND,) if self.full else (1_000, SECOND)
        shards = 1 if self.full else self.random.randint(1, 3)
        self.tickets = [[] for _ in range(shards)]
        self.granted = [[] for _ in range(shards)]
        self.unsettled = [[] for _ in range(shards)]
        self.unused = [Unused(self.edges) for _ in range(shards)]
        self.was_lost = False
        self.eras = [Era(limit, 0, 0) for limit in self.settings.limits]
        self.last = self.eras

    def _settings(self) -> Settings:
        pick = self.random.choice
        interval = pick((1, 1_000, 20_000, 100_000, SECOND))
        burst = pick((1, 1, 2, 10)) if interval > 1 else pick((1_000, 10_000))
        tolerance = burst if interval == 1 else 0
        running = pick((0, 0, 0, 1, 3))
        if self.full:
            interval, burst, tolerance, running = pick((1_000, 20_000)), 1, 0, pick((2, 3))
        return Settings(interval, burst, running, tolerance, False, self._limits())

    def _limits(self) -> tuple[Limit, ...]:
        pick, units = self.random.choice, [STARTS, STARTS, "tokens", "bytes"]
        limits = [
            Limit(
                most=pick((1, 2, 5, 20, 100)) * (1 if unit == STARTS else 10),
                window=pick((64, 5_000, 100_000, SECOND, 10 * SECOND)),
                unit=unit,
                jitter=pick((0, 0, 0, 50_000)),
            )
            for unit in self.random.sample(units, self.random.randint(1, 3))
        ]
        limits = [*{(limit.unit, limit.window): limit for limit in limits}.values()]
        return tuple([self._with_edge(limit) for limit in limits])

    def _with_edge(self, limit: Limit) -> Limit:
        if not self.fixed or self.edges.random() < 0.3:
            return limit
        window = self.edges.choice((limit.window, limit.window, 10 * SECOND))
        # Runs begin near this reading of the clock, which is near some windows' edges.
        near = T0 + self.edges.randint(0, SECOND)
        return limit._replace(
            window=window, edge=self.edges.choice((0, near, self.edges.randrange(window))) % window
        )

    def step(self) -> None:
        """Let something happen."""
        shard = self.random.randrange(len(self.tickets))
        if self.full and self.edges.random() < 0.6:
            self.edges.choice((self._take, self._ask, self._finish))(shard)
            return
        waiting = len(self.tickets[shard]) + len(self.granted[shard])
        kinds = (self._take, self._ask, self._begin, self._other)
        self.random.choices(kinds, (2 if waiting > 20 else 8, 8, 10, 1))[0](shard)

    def pass_time(self) -> None:
        """Let time pass, mostly to about an instant that matters."""
        random, settings = self.random, self.settings
        kind = random.random()
        if kind < 0.5:
            return
        instants = [each.opens for own in self.granted for each in own[:1]]
        if not instants or kind < 0.6:
            instants = [slot.due + self._held() for own in self.tickets for slot in own[:1]]
        if kind > 0.9:
            instants += [each.closes for own in self.granted for each in own[:1]]
        if ahead := [at for at in instants if at > self.now]:
            self.now = max(self.now, min(ahead) + random.choice((0, 0, 0, 1, settings.interval // 20)))
        elif kind > 0.95:
            width = random.choice((settings.interval, *(limit.window for limit in settings.limits)))
            self.now += random.choice((1, random.randint(0, 2 * width), width // 64))

    def _held(self) -> int:
        return 0 if self.state is None else self.state.held_total + self.behind

    def _apply(self, command: Command) -> Answer:
        self.state, answer = rules.apply(self.state, command, self.now - self.behind)
        self.was_lost = False
        if self.random.random() < 0.05 and isinstance(command, Advance) and not command.take:
            # The answer was lost: the question is repeated, but what wasn't needed is reported only once.
            again, self.was_lost = replace(command, settled=()), True
            self.state, answer = rules.apply(self.state, again, self.now - self.behind)
        self.steps += 1
        if self.state is not None and self.steps % 16 == 0:  # it would take half of the time, if always
            assert State.from_dict(self.state.to_dict()) == self.state
        return answer

    def _common(self) -> dict[str, object]:
        generation = None if self.state is None else self.state.generation
        return {"settings": self.settings, "generation": generation, "nonce": "g"}

    def _take(self, shard: int) -> None:
        count = self.random.choice((1, 1, 2, 5, 30))
        given = self.random.choice((0, count, count))  # without units: a start of each limit that counts them
        self._advance(shard, take=count, units=tuple(self._units() for _ in range(given)))

    def _units(self) -> Units:
        return tuple(
            1 if limit.unit == STARTS else self.random.choice((0, 1, limit.most // 3, limit.most))
            for limit in self.settings.limits
        )

    def _ask(self, shard: int) -> None:
        own = self.tickets[shard]
        count = self.random.randint(1, 3)
        lost = [each for each in self.granted[shard] if each.closes < self.now]
        if lost:  # too late: granted again, with all slots behind it
            again = [each.slot for each in self.granted[shard]]
            self.granted[shard] = []
            self.tickets[shard] = own = sorted([*again, *own])
            count = len(again)
        if own and (lost or own[0].due + self._held() <= self.now + self.settings.interval):
            self._advance(shard, slots=tuple(own[:count]))
        elif own:  # it may come sooner
            self._advance(shard, slots=(own[0],), is_far=True)

    def _advance(
        self,
        shard: int,
        slots: tuple[Slot, ...] = (),
        take: int = 0,
        units: tuple[Units, ...] = (),
        *,
        is_far: bool = False,
    ) -> None:
        release: tuple[Slot, ...] = ()
        if self.tickets[shard] and self.random.random() < 0.1:
            release = (self.tickets[shard].pop(),)
        pending, some = self.unsettled[shard], self.random.choice((0, 1, 1, 5))
        self.unsettled[shard] = pending[some:]
        unused = self.unused[shard].refunds(self.settings.limits)
        notice = self.random.choice((0, 10, self.settings.interval // 3, 3 * self.settings.interval))
        known = self.state
        command = Advance(
            **self._common(),  # type: ignore[arg-type] # of mixed types
            release=release,
            slots=tuple(slot for slot in slots if slot not in release),
            take=take,
            units=units,
            settled=(*pending[:some], *unused),
            notice=notice,
            reach=notice + (SECOND if self.full else self.random.choice((0, self.settings.interval, SECOND))),
            lease=self.random.choice(self.lease),
            until=None if self.random.random() < 0.3 else self.now + SECOND,
            ahead=self.edges.choice((0, SECOND))
            if is_far
            else self.random.choice((None, self.settings.interval)),
            high_water_mark=None
            if known is None
            else HighWaterMark(known.ticket, known.due, known.late_total),
        )
        answer = self._apply(command)
        state = answer.state
        assert state is not None
        new = answer.taken
        where = {slot: placed(state, slot) for slot in command.slots if slot.ticket in answer.granted}
        opens = {slot.ticket: slot for slot in (*where.values(), *new)}
        tickets = [*answer.granted, *(slot.ticket for slot in new[: answer.begun])]
        gone = {*answer.granted, *answer.missed, *(slot.ticket for slot in (*release, *new))}
        self.moved += sum(slot != place for slot, place in where.items())
        self.running += answer.missed  # their leases are ended
        kept = [slot for slot in self.tickets[shard] if slot.ticket not in gone]
        self.tickets[shard] = sorted([*kept, *new[answer.begun :]])
        for number, ticket in enumerate(tickets):
            instant = opens[ticket].due + state.held_total + self.behind
            at_once = answer.at_once and number == 0
            closes = instant + state.tolerance + state.credit
            opened = self.now if at_once else max(self.now, instant)
            self.granted[shard].append(Granted(opens[ticket], opened, closes, state.lag))
        for each in [each for each in self.granted[shard] if each.closes < self.now]:
            if self.edges.random() < 0.3:  # it is given up
                self.granted[shard].remove(each)
                self.unused[shard].empty.append(each.slot)
                self.running.append(each.slot.ticket)
        alive = (*self.tickets[shard], *(each.slot for each in self.granted[shard]))
        self.unused[shard].note(command, answer, state, alive, was_lost=self.was_lost)

    def _begin(self, shard: int) -> None:
        """Begin a job that may begin, at any time of its grant."""
        if self.random.random() < 0.7:
            for each in [each for each in self.granted[shard] if each.opens <= self.now <= each.closes]:
                self.granted[shard].remove(each)
                self.running.append(each.slot.ticket)
                usual = tuple(int(limit.unit == STARTS) for limit in self.settings.limits)
                taken = each.slot.units or usual
                took = self._took(taken)
                names = [limit.unit for limit in self.settings.limits]
                units = dict(zip(names, took, strict=False)) or {STARTS: 1}
                self.starts.append(Start(self.now, each.slot.ticket, units, self.behind))
                more = tuple(real - units for real, units in zip(took, taken, strict=True))
                if any(more):
                    self.unsettled[shard].append(Settled(each.slot.due, each.lag, more))

    def _finish(self, _: int) -> None:
        """Let some jobs end; others keep their leases, or get them again."""
        ended = [ticket for ticket in self.running if self.edges.random() < 0.5]
        self.running = [ticket for ticket in self.running if ticket not in ended]
        running = tuple(self.running) if self.edges.random() < 0.5 else ()
        self._apply(Finish(generation="g", ended=tuple(ended), running=running, lease=SECOND // 2))

    def _took(self, taken: Units) -> Units:
        """What a job really takes whose ticket took this much."""
        if self.random.random() < 0.3:
            return taken
        pairs = zip(self.settings.limits, taken, strict=True)
        return tuple(
            units if limit.unit == STARTS else self.random.choice((0, units // 2, units))
            for limit, units in pairs
        )

    def _other(self, shard: int) -> None:
        random = self.random
        kind = random.randrange(8)
        if kind == 0:
            self._apply(Hold(length=random.choice((1, SECOND, 20 * SECOND, FOREVER))))
            self.now += random.choice((0, 1, SECOND))
        elif kind in {1, 7}:
            self._apply(Resume())
        elif kind == 2:
            self.tickets[shard], self.granted[shard], self.unsettled[shard] = [], [], []  # it died
            self.unused[shard].empty = []
        elif kind == 3 and self.state is not None:
            self._apply(Reclaim(generation=self.state.generation))
        elif kind == 4:
            self.behind += random.choice((1, SECOND, 100 * SECOND))
            self.tickets[shard], self.granted[shard] = [], []  # it gives up its slots
            for granted in self.granted:
                granted.clear()
        elif kind == 5 and self.settings.interval > 1:
            self._apply(Configure(burst=random.choice((1, 2, 10)), interval=random.choice((None, 50_000))))
        elif kind == 6 and self.state is not None:
            self._change_limits(self.state)
        elif self.tickets[shard]:
            self._advance(shard)

    def _change_limits(self, state: State) -> None:
        """Set other limits, or the same ones with other numbers; the slots of all shards follow at once."""
        random, before = self.random, self.settings.limits
        limits = self._limits()
        if random.random() < 0.6:
            limits = tuple(
                limit._replace(
                    most=random.choice((1, 5, 20, 200)), jitter=random.choice((0, limit.jitter, 50_000))
                )
                for limit in random.sample(before, random.randint(1, len(before)))
            )
        self._apply(Configure(limits=limits))
        self.settings = replace(self.settings, limits=limits)
        self.unsettled = [[] for _ in self.unsettled]  # they count the earlier limits
        for unused in self.unused:
            unused.empty = []
        units = tuple(limit.unit for limit in before)
        for several in self.tickets:
            several[:] = reordered(Advance(slots=tuple(several)), units, limits).slots
        for granted in self.granted:
            for each in granted:
                (each.slot,) = reordered(Advance(slots=(each.slot,)), units, limits).slots
        eras = []
        for limit in limits:
            same = [era for era in self.last if era.limit.unit == limit.unit]
            known, counts = self.now, state.ticket
            if same:
                source = min(
                    same,
                    key=lambda era: (era.limit.window < limit.window, abs(era.limit.window - limit.window)),
                )
                known = max(source.known, beginning(source.limit, self.now, self.behind))
                counts = source.counts
            eras.append(Era(limit, state.ticket, known, counts))
        for era in self.last:
            era.through = state.ticket
        self.last = eras
        self.eras += eras

    def over(self) -> list[str]:
        """Every limit that was exceeded in any window; each window ends with a start."""
        found = []
        for era in self.eras:
            limit = era.limit
            starts = sorted(
                (each.at, min(limit.most, each.units.get(limit.unit, 0)), each.ticket, each.behind)
                for each in self.starts
                if each.at > era.known and era.counts < each.ticket <= era.through
            )
            for place, (at, units, ticket, behind) in enumerate(starts):
                since = beginning(limit, at, behind)
                counted = sum(units for at, units, *_ in starts[: place + 1] if at > since)
                if units and counted > limit.most and ticket > era.since:
                    found.append(f"seed {self.seed}: {counted} of {limit} before {at - T0}")
                    break
        return found


def run(seed: int, steps: int = 300, *, fixed: bool = False, full: bool = False) -> Run:
    """Make one run."""
    made = Run(seed, fixed, full)
    for _ in range(steps):
        made.step()
        made.pass_time()
    return made


def main() -> None:
    """Make as many runs as requested."""
    total = int(sys.argv[1])
    starts = bad = 0
    for seed in range(total):
        done = run(seed, fixed=seed % 2 == 1)
        starts += len(done.starts)
        for line in done.over():
            bad += 1
            print(line, flush=True)
    print(f"{total} runs, {starts} starts, {bad} over a limit")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
