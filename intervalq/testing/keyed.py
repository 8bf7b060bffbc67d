"""Random commands on keys under one rate, as shards in trouble send them, for `intervalq.keyed`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from random import Random
from typing import Any

from intervalq.keyed import Common, KeyedAnswer, Place
from intervalq.rules import (
    FOREVER,
    STARTS,
    Advance,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Inspect,
    Limit,
    Reclaim,
    Resume,
    Settings,
    Settled,
    Slot,
    State,
    Units,
)

_INTERVALS = (7, 1_000, 10_000, 1_000_000)


@dataclass(slots=True)
class _Key:
    """What the shards of a key know."""

    name: str
    weight: int
    slots: list[Slot] = field(default_factory=list)
    state: State | None = None
    high_water_mark: HighWaterMark | None = None
    generation: str | None = None
    places: list[Place] = field(default_factory=list)
    unsettled: dict[int, Settled] = field(default_factory=dict)
    """By the ticket: what may be refunded of the common units of a granted slot."""
    own_unsettled: dict[int, Settled] = field(default_factory=dict)
    """The same of units of the key's limits."""


class KeyedSource:
    """Generates successive commands on the keys of one queue, or on the queue itself, from one seed.

    Args:
        seed: of the random choices.
        start: the first instant.
        steps_back: whether the store's clock is sometimes set back.
        overruns: whether jobs sometimes take more than their tickets.
        strangers: whether handles that don't know the common rate sometimes use the keys.
    """

    def __init__(
        self,
        seed: int,
        *,
        start: int = 1_000_000_000_000_000,
        steps_back: bool = True,
        overruns: bool = True,
        strangers: bool = False,
    ) -> None:
        self.random = random = Random(seed)  # noqa: S311 - repeatable on purpose
        self.now = start
        self.common = Settings(
            random.choice(_INTERVALS),
            tolerance=random.choice((0, 0, 1, 700)),
            burst=random.choice((1,) * 9 + (3,)),
        )
        if random.random() < 0.6:
            self.common = replace(self.common, limits=self._limits())
        self.own_pace = random.random() < 0.5
        interval = (
            self.common.interval * random.choice((1, 1, 3, 10)) if self.own_pace else self.common.interval
        )
        limits = self._limits(edged=False) if random.random() < 0.6 else ()
        self.settings = Settings(interval, ephemeral=True, limits=limits)
        self.keys = [_Key(name, random.choice((1, 1, 2, 5))) for name in "abc"]
        self._common_state: State | None = None
        self._nonces = 0
        self._last: tuple[str, Command, Common] | None = None
        self._steps_back, self._overruns, self._strangers = steps_back, overruns, strangers

    def next(self) -> tuple[str, Command, Common | None, int]:
        """The key (empty: the common queue), the command, what its sender knows, and the store's clock.

        What the sender knows is None for a command on one record: the common one, or that of the key.
        """
        random = self.random
        if self._last is not None and random.random() < 0.07:
            self.now += random.choice((0, 1, self.common.interval))
            name, command, known = self._last  # the answer was lost: sent again, but no refund is
            if isinstance(command, Advance):
                command = replace(command, settled=())
            return name, command, replace(known, settled=()), self.now
        self._step()
        if random.random() < 0.06:
            return "", self._on_common(), None, self.now
        key = random.choice(self.keys)
        if self._strangers and random.random() < 0.05:
            return key.name, self._command(key), None, self.now
        known = self._known(key)
        self._last = key.name, self._command(key), known
        return (*self._last, self.now)

    def learn(self, name: str, command: Command, answer: KeyedAnswer) -> None:
        """Record the result of a command on a key."""
        key = next(key for key in self.keys if key.name == name)
        if self.random.random() < 0.05:
            return  # it was lost
        if answer.common is not None:
            self._common_state = answer.common
        key.places = [*(place for place in key.places if place not in answer.places), *answer.places][-12:]
        state = answer.answer.state
        if answer.answer.refused or state is None:
            return
        if state.generation != key.generation:
            key.generation, key.slots = state.generation, []
        key.state, key.high_water_mark = state, HighWaterMark(state.ticket, state.due, state.late_total)
        left = [slot for slot in key.slots if slot.ticket not in answer.answer.missed]
        key.slots = [*left, *taken(command, answer)][-12:]
        if answer.common is not None:
            self._granted(key, answer, answer.common, state)

    def _granted(self, key: _Key, answer: KeyedAnswer, common: State, state: State) -> None:
        """Remember what may be settled."""
        first = answer.answer.first
        begun = () if first is None else range(first.ticket, first.ticket + answer.answer.begun)
        slots, own = {slot.ticket: slot for slot in key.slots}, len(state.settings.limits)
        for place in answer.places:
            if place.ticket in answer.answer.granted or place.ticket in begun:
                slot = slots.get(place.ticket, Slot(place.ticket, 0))
                least, most = self.random.choice(((-1, 0), (-1, 0), (-1, 1), (0, 2)))
                most *= self._overruns
                more = tuple([self.random.randint(least * some, most * (some + 1)) for some in slot.units])
                key.unsettled[place.ticket] = Settled(place.slot.due, common.lag, more[own:])
                key.own_unsettled[place.ticket] = Settled(slot.due, state.lag, more[:own])
        if self.random.random() < 0.02:
            key.unsettled.clear()
            key.own_unsettled.clear()

    def _limits(self, *, edged: bool = True) -> tuple[Limit, ...]:
        random, interval = self.random, self.common.interval
        starts = Limit(random.choice((5, 8)), random.choice((5, 20, 100)) * interval)
        tokens = Limit(random.choice((10, 1_000)), random.choice((3, 30)) * interval, "tokens")
        edge = random.choice((None, None, tokens.window // 3)) if edged else None
        return random.choice(((starts,), (tokens,), (tokens._replace(edge=edge), starts)))

    def _units(self, key: _Key) -> Units:
        """What a ticket takes of each limit; empty: a start of those that count them."""
        random, state = self.random, self._common_state
        own = (self.settings if key.state is None else key.state.settings).limits
        limits = (*own, *(self.common if state is None else state.settings).limits)
        if random.random() < 0.3:
            return ()
        return tuple(
            [
                1 if limit.unit == STARTS else random.choice((0, 1, limit.most // 3, limit.most))
                for limit in limits
            ]
        )

    def _step(self) -> None:
        random, interval = self.random, self.settings.interval
        choice = random.random()
        if choice < 0.3:
            self.now += random.choice((0, 1, 2))
        elif choice < 0.6:
            self.now += random.randint(0, 2 * self.common.interval)
        elif choice < 0.63 and self._steps_back:
            self.now -= random.randint(1, 3 * interval)
        elif choice < 0.65:
            self.now += random.randint(0, 20 * interval)
        elif choice < 0.66:
            self.now += 70_000_000
        else:
            limits = [
                slot.due + key.state.held_total + more
                for key in self.keys
                if key.state is not None
                for slot in key.slots[-4:]
                for more in (0, key.state.tolerance, -interval // 3)
            ]
            if self._common_state is not None:
                limits += [
                    self._common_state.due + self._common_state.held_total,
                    self._common_state.held_until,
                ]
            limits = [limit for limit in limits if self.now < limit < self.now + 1_000 * interval]
            if limits:
                self.now = random.choice(limits) + random.choice((-1, 0, 0, 1))

    def _settings(self, key: _Key) -> Settings:
        """The settings that the key has, as far as its shards know; its first ones, if that is nothing."""
        return self.settings if key.state is None else key.state.settings

    def _settled(self, key: _Key) -> tuple[Settled, ...]:
        """What is settled of the key's limits."""
        if not key.own_unsettled or self.random.random() < 0.5:
            return ()
        ticket = self.random.choice([*key.own_unsettled])
        key.slots = [slot for slot in key.slots if slot.ticket != ticket]  # its job began
        return (key.own_unsettled.pop(ticket),)

    def _nonce(self) -> str:
        self._nonces += 1
        return f"g{self._nonces}"

    def _known(self, key: _Key) -> Common:
        random, state = self.random, self._common_state
        settings = self.common if state is None or random.random() < 0.05 else state.settings
        mark = None if state is None else HighWaterMark(state.ticket, state.due, state.late_total)
        if mark is not None and random.random() < 0.03:  # the store lost writes
            mark = mark._replace(ticket=mark.ticket + 3, due=mark.due + 3 * self.common.interval)
        released = key.places[-1:] if random.random() < 0.05 else []
        own = 0 if key.state is None else len(key.state.settings.limits)
        units = {slot.ticket: slot.units[own:] for slot in key.slots}
        settled = list[Settled]()
        if key.unsettled and random.random() < 0.3:
            ticket = random.choice([*key.unsettled])  # its job began, so it isn't requested again
            settled = [key.unsettled.pop(ticket)]
            key.slots = [slot for slot in key.slots if slot.ticket != ticket]
        key.places = [place for place in key.places if place not in released]
        return Common(
            record="common",
            settings=random.choice((None, settings, settings, settings, settings, settings)),
            own_pace=self.own_pace,
            weight=key.weight,
            generation=None if state is None or random.random() < 0.05 else state.generation,
            nonce=self._nonce(),
            high_water_mark=random.choice((None, mark, mark, mark)),
            places=tuple(key.places) if random.random() < 0.9 else (),
            release=tuple(place.slot._replace(units=units.get(place.ticket, ())) for place in released),
            settled=tuple(settled),
        )

    def _on_common(self) -> Command:
        random = self.random
        made: dict[str, Any] = {"settings": self.common, "nonce": self._nonce()}
        state = self._common_state
        if state is not None:
            made |= {"settings": state.settings, "generation": state.generation}
        interval = self.common.interval
        return random.choice(
            (
                Hold(length=random.choice((FOREVER, interval, 5 * interval)), **made),
                Hold(length=random.choice((interval, 5 * interval)), **made),
                Resume(**made),
                Resume(**made),
                Configure(
                    interval=random.choice((interval, interval, 2 * interval, interval // 2 or 1)), **made
                ),
                Configure(limits=self._limits(), **made),
                Advance(take=random.choice((1, 3)), reach=interval, notice=interval // 10, **made),
                Drop(),
            )
        )

    def _command(self, key: _Key) -> Command:
        random, interval = self.random, self.settings.interval
        made: dict[str, Any] = {
            "settings": random.choice((None, self.settings, *[self._settings(key)] * 8)),
            "attach": random.random() < 0.1,
            "generation": None if random.random() < 0.05 else key.generation,
            "nonce": self._nonce(),
        }
        choice = random.random()
        if choice < 0.81:
            return self._advance(key, made)
        if choice < 0.87:
            return Configure(weight=random.choice((0, 0, 1, 2, 5)), **made)
        others: tuple[Command, ...] = (
            Hold(length=random.choice((FOREVER, interval, 3 * interval)), **made),
            Resume(**made),
            Resume(**made),
            Reclaim(**made),
            Finish(ended=tuple(slot.ticket for slot in key.slots[-3:]), lease=interval, **made),
            Configure(
                interval=random.choice((None, interval, 2 * interval)),
                limits=self._limits(edged=random.random() < 0.1) if random.random() < 0.2 else None,
                **made,
            ),
            Inspect(),
            Drop(**made),
        )
        return random.choices(others, (2, 2, 2, 1, 3, 1, 1, 0.3))[0]

    def _advance(self, key: _Key, made: dict[str, Any]) -> Advance:
        random, interval = self.random, self.settings.interval
        given = 0.05
        if key.slots and key.state is not None and key.slots[-1].ticket == key.state.current:
            given = 0.3  # its units lie where it was granted
        release = tuple(key.slots[-1:]) if random.random() < given else ()
        key.slots = key.slots[: len(key.slots) - len(release)]
        first = random.randint(0, len(key.slots))
        placed = {place.ticket for place in key.places}
        if random.random() < 0.3:  # a slot that waits for its place
            first = next((n for n, slot in enumerate(key.slots) if slot.ticket in placed), first)
        slots = tuple(key.slots[first : first + random.choice((1, 2, 4, 12))])
        if slots and random.random() < 0.05:
            slots = tuple(slot for slot in slots if random.random() < 0.7)
        take = random.choice((0, 0, 1, 2, 6))
        notice = random.choice((0, 1, 300, interval // 10, interval))
        state = key.state
        return Advance(
            release=release,
            slots=slots,
            take=take,
            costs=random.choice(((), (), (), tuple(random.choice((1, 1, 2, 5)) for _ in range(take)))),
            units=tuple(self._units(key) for _ in range(random.choice((0, take)))),
            notice=notice,
            reach=random.choice((0, notice, 50_000, 3 * interval)),
            lease=random.choice((interval, 10 * interval)),
            until=random.choice((None, self.now, self.now + interval)),
            ahead=random.choice((None, 0, notice, interval)),
            high_water_mark=random.choice(
                (None, key.high_water_mark, key.high_water_mark, key.high_water_mark)
            ),
            error=random.choice((0, 0, 0, 0, 30 if state is not None else 0)),
            settled=self._settled(key) if made["settings"] is not None else (),
            **made,
        )


def taken(command: Command, answer: KeyedAnswer) -> tuple[Slot, ...]:
    """The new tickets of a key, with what they take of the common limits."""
    if not isinstance(command, Advance):
        return answer.answer.taken
    missed = [slot.units for slot in command.slots if slot.ticket in answer.answer.missed]
    units = chain(missed, command.units, repeat(()))
    pairs = zip(answer.answer.taken, units, strict=False)
    return tuple([slot._replace(units=some) for slot, some in pairs])
