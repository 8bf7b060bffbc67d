"""Random commands as shards in trouble send them: late, repeated, out of order, for a lost record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

from intervalq._spec.standing import placed
from intervalq.rules import (
    FOREVER,
    STARTS,
    Advance,
    Answer,
    Auto,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Limit,
    Reclaim,
    Refusal,
    Resume,
    Settings,
    Settled,
    Slot,
    State,
    Units,
    apply,
    lapses,
)

_FAR = 10**14
"""Clocks are not set so far ahead that they exceed the numbers that a store can hold."""

_DAY = 86_400_000_000

_INTERVALS = (1, 7, 1_000, 10_000, 1_000_000, 3_600_000_000)


class CommandSource:
    """Generates successive commands and instants from one seed.

    It remembers the issued slots, as the shards together would, so that most commands concern existing slots,
    at instants around their limits: that is where differences between rules show.
    """

    def __init__(self, seed: int, *, start: int = 1_000_000_000_000_000) -> None:
        self.random = Random(seed)  # noqa: S311 - repeatable on purpose
        self._looks = Random(f"looks {seed}")  # noqa: S311 - as above
        self.now = start
        self.settings = self._settings()
        self.slots: list[Slot] = []
        self.granted: set[int] = set()
        self.generation: str | None = None
        self._nonces = 0
        self._last: Command | None = None
        self._released: tuple[Slot, ...] = ()

    def learn(self, answer: Answer) -> None:
        """Record the result of the last command."""
        if answer.state is None or (answer.refused and self.random.random() < 0.5):
            return
        if answer.state.settings.auto != self.settings.auto and self.random.random() < 0.7:
            self.settings = replace(self.settings, auto=answer.state.settings.auto)
        if answer.state.settings.limits != self.settings.limits and self.random.random() < 0.7:
            self.settings = replace(self.settings, limits=answer.state.settings.limits)
        if answer.state.generation != self.generation:
            if self.generation is not None and self.random.random() < 0.2:
                return  # some shards have not heard yet that the record is a new one
            self.generation = answer.state.generation
            self.slots.clear()
            self.granted.clear()
            self._released = ()
        listed = self._last.slots if isinstance(self._last, Advance) else ()
        where = [placed(answer.state, slot) for slot in listed if slot.ticket in answer.granted]
        self.slots.extend([*(slot for slot in where if slot not in self.slots), *answer.taken])
        self.granted |= {*answer.granted, *(slot.ticket for slot in answer.taken[: answer.begun])}

    def next(self, state: State | None) -> tuple[Command, int]:
        """A command, and the store's clock when it arrives."""
        if self._last is not None and self.random.random() < 0.07:
            self.now += self.random.choice((0, 1, self.settings.interval))
            return self._last, self.now  # the answer was lost: sent again
        self.now += self._step(state)
        kinds: list[tuple[float, Callable[[State | None], Command]]] = [
            (12, self._advance),
            (1.2, self._hold),
            (1.2, lambda _: Resume(**self._common())),
            (0.7, self._configure),
            (0.5, lambda _: Reclaim(**self._common())),
            (2, self._finish),
            (0.15, lambda _: Drop(**self._common())),
        ]
        make = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        self._last = make(state)
        return self._last, self.now

    def _step(self, state: State | None) -> int:
        """How far the store's clock moves: mostly to about an instant that matters."""
        choice = self.random.random()
        interval = self.settings.interval
        if choice < 0.25:
            return self.random.choice((0, 1, 2))
        if choice < 0.5 or state is None:
            return self.random.randint(0, 3 * interval)
        if choice < 0.57:
            return -self.random.randint(1, 4 * interval)  # the clock is set back
        limits = [slot.due + state.held_total for slot in self.slots[-4:]]
        limits += [limit + state.tolerance + state.credit for limit in limits]
        limits += [state.held_until, *state.running.values(), state.due + state.held_total + interval]
        limits += [state.error_until] * 3
        for limit, use in zip(state.settings.limits, state.usage, strict=True):
            ends = [end + state.held_total for end, _ in use.ahead[:3]] + [cell[0] for cell in use.used[:2]]
            limits += [
                end + length for end in ends for length in (0, limit.window, limit.window + limit.block)
            ]
            if limit.edge is not None:
                edge = self.now + (limit.edge - self.now) % limit.window
                limits += [edge, edge, edge + limit.jitter, edge + state.error]
        limits = [limit for limit in limits if self.now < limit < self.now + 1_000 * interval]
        if state is not None and self.random.random() < 0.15 and (end := lapses(state)) < self.now + _FAR:
            return max(0, end - self.now + self.random.choice((-1, 0, 0, 1)))
        if not limits:
            return self.random.randint(0, 100 * interval)
        return self.random.choice(limits) - self.now + self.random.choice((-1, 0, 0, 1, interval // 10))

    def _settings(self) -> Settings:
        interval = self.random.choice(_INTERVALS)
        return Settings(
            interval=interval,
            burst=self.random.choice((1, 1, 1, 2, 5)),
            max_running=self.random.choice((0, 0, 0, 1, 2, 3)),
            tolerance=self.random.choice((0, 0, 1, interval // 3, interval, 5 * interval)),
            ephemeral=self.random.random() < 0.2,
            limits=self._limits(interval) if self.random.random() < 0.3 else (),
            auto=self._auto(interval) if self.random.random() < 0.3 else None,
        )

    def _auto(self, interval: int) -> Auto:
        pick = self.random.choice
        slowest = min(_DAY, interval * pick((1, 3, 100, 10_000)))
        return Auto(slowest, max(1, slowest // pick((1, 7, 1_000, 10**6))))

    def _limits(self, interval: int) -> tuple[Limit, ...]:
        pick = self.random.choice
        units = self.random.sample([STARTS, STARTS, "tokens", "\u00e4\U0001d11e"], pick((1, 1, 2, 3)))
        windows = (64, 1_000, interval, 10 * interval, 1_000 * interval, 64 * 86_400_000_000)
        limits = [
            Limit(pick((1, 2, 7, 100, 10**9)), max(64, pick(windows)), unit, pick((0, 0, 1, interval)))
            for unit in units
        ]
        return tuple([limit._replace(edge=self._edge(limit.window)) for limit in limits])

    def _edge(self, window: int) -> int | None:
        """The beginning of fixed windows, if a limit has them: many begin about now."""
        pick, near = (
            self.random.choice,
            self.now + self.random.randint(-1, 1) * self.random.randint(0, window // 50),
        )
        return pick((None, None, 0, window - 1, near % window, near % window))

    def _common(self) -> dict[str, Any]:
        self._nonces += 1
        known = self.random.random()
        settings: Settings | None = self.settings
        if known < 0.04:
            settings = self._settings()
        elif known < 0.08:
            settings = None
        generation = self.generation if self.random.random() < 0.93 else self.random.choice((None, "lost"))
        return {
            "settings": settings,
            "attach": self.random.random() < 0.1,
            "generation": generation,
            "nonce": f"g{self._nonces}",
        }

    def _some(self, most: int) -> tuple[Slot, ...]:
        """A few of the issued slots, in ticket order, most of them recent; some omitted."""
        if not self.slots:
            return ()
        recent = self.slots[-12:]
        picked = self.random.sample(recent, min(len(recent), self.random.randint(0, most)))
        if self.random.random() < 0.4:
            picked = self.slots[-self.random.randint(1, most) :]
        return tuple(sorted(picked, key=lambda slot: slot.ticket))

    def _advance(self, state: State | None) -> Command:
        release = self._some(4) if self.random.random() < 0.3 else ()
        self.slots = [slot for slot in self.slots if slot not in release]
        if self.random.random() < 0.1:
            release = self._released  # once more, as after a lost answer
        self._released = release
        slots = self._some(4)
        if self.slots and self.random.random() < 0.1:  # the last one again, which may have begun
            slots = tuple(self.slots[-1:])
        if self.slots and state is not None and self.random.random() < 0.3:
            slots = self._from_a_late_one(state)
        interval, pick = self.settings.interval, self.random.choice
        take = pick((0, 1, 1, 1, 2, 3, 16, 1_000, 1_200))
        command = Advance(
            **self._common(),
            release=release,
            slots=slots,
            take=take,
            costs=self._costs(state),
            units=self._units(state),
            settled=self._settled(state),
            notice=pick((0, 0, 1, interval // 3, 2 * interval)),
            reach=pick((0, 0, 1, interval, 3 * interval)),
            lease=pick((1, interval, 10 * interval)),
            until=pick((None, self.now, self.now - 1, self.now + interval, self.now + interval)),
            ahead=pick((None, 0, 1, interval, 3 * interval)),
            high_water_mark=self._mark(state, slots),
            error=pick((0, 0, 0, 1, interval // 10, interval)),
        )
        return command if state is None else self._again(state, self._sooner(state, command))

    def _sooner(self, state: State, command: Advance) -> Advance:
        """The command; or, with limits, one that lists the next ticket alone, whose slot may come sooner."""
        head = max(state.current, state.revoked_through) + 1
        slots = tuple([slot for slot in self.slots if slot.ticket == head][-1:])
        if not (slots and state.settings.limits) or self._looks.random() < 0.6:
            return command
        width = max(limit.window for limit in state.settings.limits)
        ahead = self._looks.choice((0, self.settings.interval, width // 64, width, width))
        if self._looks.random() < 0.7:  # there may be room by now
            more = tuple([-limit.most for limit in state.settings.limits])
            command = replace(command, settled=(Settled(state.current_due, state.lag, more),))
        return replace(command, slots=slots, ahead=ahead, generation=state.generation)

    def _again(self, state: State, command: Advance) -> Advance:
        """The command; or one that is late for a slot that came sooner: where it is, or where it was."""
        places = sorted({slot for slot in self.slots if slot.ticket == state.current})
        if len(places) < 2 or not state.settings.limits or self._looks.random() < 0.5:
            return command
        slot, interval = self._looks.choice(places), self.settings.interval
        over = slot.due + state.held_total + state.tolerance + state.credit
        if over > self.now + _FAR:
            return command
        self.now = max(self.now, over + self._looks.choice((0, 1, interval)))
        mark = HighWaterMark(state.ticket, state.due, state.late_total)
        return replace(
            command, slots=(slot,), generation=state.generation, until=self.now, high_water_mark=mark
        )

    def _costs(self, state: State | None) -> tuple[int, ...]:
        pick = self.random.choice
        if pick((True, True, True, False)):
            return ()
        costs = [pick((1, 1, 2, 7, 10**9)) for _ in range(pick((1, 2, 4)))]
        if state is not None and self.random.random() < 0.03:  # nearly all the slots that there are
            slots = (FOREVER - state.due) // state.settings.interval
            costs[0] = max(1, slots - self.random.randint(1, 5))
        return tuple(costs)

    def _units(self, state: State | None) -> tuple[Units, ...]:
        settings, pick = self.settings if state is None else state.settings, self.random.choice
        if not settings.limits or pick((True, False, False, False)):
            return ()
        return tuple(
            tuple(
                [pick((0, 1, 1, 2, limit.most // 2, limit.most)) for limit in settings.limits][
                    : pick((0, 1, 3, 3))
                ]
            )
            for _ in range(pick((1, 2, 16)))
        )

    def _settled(self, state: State | None) -> tuple[Settled, ...]:
        """Settled costs: of slots that were issued, or that are in the record's cells, or of neither."""
        if state is None or not state.settings.limits or self.random.random() < 0.6:
            return ()
        pick, limits = self.random.choice, state.settings.limits
        cells = [cell for use in state.usage for cell in (*use.used[:4], *use.used[-4:], *use.ahead[-4:])]
        cells = [cell for cell in cells if cell[-1] > -FOREVER]  # the others fill a window, and have no slot
        dues = [slot.due for slot in self.slots[-8:]] + [cell[-1] - 1 for cell in cells if len(cell) == 3]
        dues += [cell[0] - 1 for cell in cells if len(cell) == 2] + [state.due + self.settings.interval]
        lags = [state.lag, *(cell[0] - cell[-1] for cell in cells if len(cell) == 3)]
        return tuple(
            Settled(
                pick(dues),
                pick(lags) + pick((0, 0, 0, -1, 1)),
                tuple(
                    [pick((-limit.most, -2, -1, 0, 1, limit.most, 10**12)) for limit in limits][
                        : pick((1, 3))
                    ]
                ),
            )
            for _ in range(pick((1, 1, 2, 5)))
        )

    def _from_a_late_one(self, state: State) -> tuple[Slot, ...]:
        """All tickets from one that may be late to the last one that was granted, and perhaps one more."""
        last = state.current + self.random.randint(-1, 1)
        first = last - self.random.randint(0, 3)
        return tuple(slot for slot in sorted({*self.slots[-12:]}) if first <= slot.ticket <= last)

    def _mark(self, state: State | None, slots: tuple[Slot, ...]) -> HighWaterMark | None:
        last = max((*self.slots, *slots), key=lambda slot: slot.ticket, default=None)
        known = 0 if state is None else state.late_total
        stale = self.random.random()
        if stale < 0.05 and state is not None:  # as after a failover to an older copy
            ahead = self.random.randint(1, 5)
            due = min(FOREVER, state.due + ahead * self.settings.interval)
            return HighWaterMark(state.ticket + ahead, due, known + ahead % 2)
        if stale < 0.08 and last is not None:  # as when only a late grant was lost
            return HighWaterMark(
                last.ticket, last.due, known + self.random.randint(1, self.settings.interval)
            )
        if stale < 0.18:
            known = max(0, known - self.random.randint(1, self.settings.interval))
        return None if last is None or stale > 0.92 else HighWaterMark(last.ticket, last.due, known)

    def _hold(self, _: State | None) -> Command:
        interval = self.settings.interval
        length = self.random.choice((1, interval, self.random.randint(1, 10 * interval), FOREVER))
        if self.random.random() < 0.5:
            return Hold(**self._common(), length=length)
        length = self.random.choice((0, 0, 1, interval, 5_000_000))
        return Hold(**self._common(), length=length, refusal=self._refusal())

    def _refusal(self) -> Refusal | None:
        """A start that the server refused: mostly one of the last, and sometimes one that never was."""
        if not self.slots:
            return None
        slot, pick = self.random.choice(self.slots[-8:]), self.random.choice
        return Refusal(max(0, slot.ticket + pick((0, 0, 0, 0, 0, -1, 1))), slot.due + pick((0, 0, 0, -1, 1)))

    def _configure(self, _: State | None) -> Command:
        pick = self.random.choice
        return Configure(
            **self._common(),
            interval=pick((None, None, self.settings.interval, *_INTERVALS)),
            burst=pick((None, None, 1, 2, 5)),
            max_running=pick((None, None, 0, 1, 3)),
            limits=self._other_limits() if pick((True, False, False, False)) else None,
            auto=self._auto(pick(_INTERVALS)) if pick((True, False, False, False)) else None,
        )

    def _other_limits(self) -> tuple[Limit, ...]:
        pick, limits, interval = self.random.choice, self.settings.limits, self.settings.interval
        if not limits or pick((True, False, False)):
            return pick(((), self._limits(interval), self._limits(interval)))
        some = self.random.sample(limits, self.random.randint(1, len(limits)))
        return tuple(
            limit._replace(
                most=pick((limit.most, 1, 50)),
                jitter=pick((0, limit.jitter)),
                edge=pick((limit.edge, limit.edge, self._edge(limit.window))),
            )
            for limit in some
        )

    def _finish(self, _: State | None) -> Command:
        ended = tuple(slot.ticket for slot in self._some(3))
        running = tuple(slot.ticket for slot in self._some(3) if slot.ticket in self.granted)
        lease = self.random.choice((1, self.settings.interval, 10 * self.settings.interval))
        return Finish(**self._common(), ended=ended, running=running, lease=lease)


def small_states() -> Iterator[list[tuple[Command, int]]]:
    """Every way to take up to three tickets, use the first of them and give any of them back.

    Each is a list of commands with their instants. The last one gives back, and takes one more ticket.
    """
    costs = [*product((1, 2), repeat=1), *product((1, 2), repeat=2), (1, 1, 1)]
    for each in costs:
        for given_back in product((False, True), repeat=len(each)):
            for used, revoked, late in product(range(len(each) + 1), (False, True), (0, 1_000)):
                if late and not used:
                    continue
                yield _small_state(each, given_back, used, late=late, revoked=revoked)


def _small_state(
    costs: tuple[int, ...], given_back: tuple[bool, ...], used: int, *, late: int, revoked: bool
) -> list[tuple[Command, int]]:
    start, settings = 1_000_000_000_000_000, Settings(interval=100)
    made = Advance(settings=settings, nonce="small", take=len(costs), costs=costs)
    answer = apply(None, made, start)[1]
    slots = answer.taken
    commands: list[tuple[Command, int]] = [(made, start)]
    if used:
        using = Advance(generation="small", slots=slots[:used], ahead=FOREVER)
        commands.append((using, start + late))
    if revoked:
        commands.append((Reclaim(generation="small"), start + late))
    release = tuple(slot for slot, back in zip(slots, given_back, strict=True) if back)
    commands.append((Advance(generation="small", release=release, take=1), start + late + 1))
    return commands
