"""Which lane is next, and how a batch is divided: surplus round robin, charged after the fact.

The cost of work is known when it is done. So a lane is served while its balance is above 0, is charged an
estimate when it is picked and the difference when the work is settled, and carries a debt into the next
rounds. While lanes have work, none gets more than 1 + (Max - 1) / quantum rounds ahead of another, where Max
is the largest cost. A pick takes constant time unless quanta are far below costs; then it walks over the
lanes in debt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leash.errors import ConfigError
from leash.policies.exact_numbers import whole
from leash.policies.fair import state as saved
from leash.policies.fair import tiers as strict
from leash.policies.fair.bulk import share_out
from leash.policies.fair.rounds import Lane, Rounds, Ticket

__all__ = ["DeficitRoundRobin", "Ticket"]


class DeficitRoundRobin:
    """Lanes with a quantum each. `tiers` ranks them (default: 0, the highest); `guaranteed` maps a tier to
    the percentage of all services that it gets even while higher ones have work.

    Other tiers wait for a lane that expects messages only while `coming(lane)`: not while all its credit is
    in work, for example.

    `quiet_first`: a lane that wakes up is next, once in a round.
    """

    __slots__ = ("_coming", "_guarantees", "_lanes", "_quiet_first", "_tiers")

    def __init__(
        self,
        quanta: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        tiers: Mapping[str, int] | None = None,
        guaranteed: Mapping[int, int] | None = None,
        coming: Callable[[str], bool] = lambda _: True,
        quiet_first: bool = False,
    ) -> None:
        self._coming = coming
        self._quiet_first = quiet_first
        self._lanes: dict[str, Lane] = {}
        self._tiers: list[Rounds] = []
        self._guarantees = bool(guaranteed)
        ranks = dict(tiers or {})
        try:
            pairs = list(quanta.items()) if isinstance(quanta, Mapping) else [(name, q) for name, q in quanta]
        except (TypeError, ValueError):
            raise ConfigError("quanta", quanta, "a mapping of lanes to quanta, or pairs of them") from None
        for name, quantum in pairs:
            self.add_lane(name, quantum, ranks.pop(name, 0))
        for name in ranks:
            raise ConfigError("tiers", name, f"only lanes that have a quantum: {self._names()}")
        if guaranteed is not None and not isinstance(guaranteed, Mapping):
            raise ConfigError("guaranteed", guaranteed, "a mapping of tiers to percentages")
        for tier, share in (guaranteed or {}).items():
            self._rounds(tier).share = whole("guaranteed", share, 1, 100)
        if sum(rounds.share for rounds in self._tiers) > 100:
            raise ConfigError("guaranteed", guaranteed, "percentages that add up to at most 100")

    # The lanes

    def add_lane(self, lane: str, quantum: int, tier: int = 0) -> None:
        if lane in self._lanes:
            raise ConfigError("lane", lane, "each lane once; set_quantum changes one that exists")
        self._lanes[lane] = Lane(lane, whole("quantum", quantum, 1), self._rounds(tier))

    def remove_lane(self, lane: str) -> None:
        """Forget it, its visible messages and its debt; settle what is in work first."""
        account = self._lane(lane)
        account.rounds.leave(account)
        del self._lanes[lane]

    def set_quantum(self, lane: str, quantum: int) -> None:
        """Change a quantum from the lane's next turn on; the rest of this turn is at most the new quantum."""
        account, quantum = self._lane(lane), whole("quantum", quantum, 1)
        balance = account.rounds.balance(account)  # past rounds count at the old quantum
        account.balance = min(balance, quantum)
        account.round = max(account.round, account.rounds.round - 1)
        account.quantum = quantum

    @property
    def quanta(self) -> dict[str, int]:
        return {name: lane.quantum for name, lane in self._lanes.items()}

    @property
    def held(self) -> list[str]:
        """The lanes for which their round waits: known to have work, none of it here."""
        return [name for rounds in self._tiers for name in rounds.held]

    def holds_up(self, lane: str) -> bool:
        """True if other lanes of its tier wait while the round waits for this one."""
        return bool(self._lane(lane).rounds.turns)

    @property
    def front(self) -> str | None:
        """The lane of the highest tier whose turn it is, if that is known without a pick."""
        for rounds in self._tiers:
            lane = rounds.front()
            if lane is not None:
                return lane.name
        return None

    def balance(self, lane: str) -> int:
        account = self._lane(lane)
        return account.rounds.balance(account)

    def visible(self, lane: str) -> int:
        return self._lane(lane).visible

    def standing(self, tier: int = 0) -> dict[str, int]:
        """What each waiting lane of a tier got of the current round: where a certificate starts."""
        return next((rounds.standing() for rounds in self._tiers if rounds.tier == tier), {})

    # One by one

    def offer(self, lane: str, n: int = 1) -> None:
        """`n` messages became visible."""
        account = self._lanes.get(lane) or self._lane(lane)
        if n.__class__ is not int or n < 0:
            n = whole("n", n, 0)
        account.visible += n
        if account.expected:
            account.expected = max(0, account.expected - n)
        if n and not account.listed and not account.blocked:
            account.rounds.join(account)

    def withdraw(self, lane: str, n: int) -> None:
        """`n` visible messages are gone without a pick."""
        account = self._lane(lane)
        account.visible -= whole("n", n, 0, account.visible)

    def expect(self, lane: str, n: int) -> None:
        """`n` more are known to be in flight; messages offered from now on count against them.

        A lane that expects messages waits although it has none: when it is its turn, it is held. The others
        finish the round, but no new one begins until messages arrive, or until expect(lane, 0) gives it up.
        """
        account = self._lane(lane)
        account.expected = whole("n", n, 0)
        if account.expected and account.idle and not account.blocked:
            account.rounds.join(account)
        elif not account.expected and lane in account.rounds.held:
            account.rounds.park(account)

    def block(self, lane: str) -> None:
        """It may not be served for now: it sits out, and collects no quantum."""
        account = self._lane(lane)
        account.blocked = True
        if lane in account.rounds.held:
            account.rounds.park(account)

    def unblock(self, lane: str) -> None:
        account = self._lane(lane)
        account.blocked = False
        if account.idle and (account.visible or account.expected):
            account.rounds.join(account)

    def pick(
        self,
        eligible: Callable[[str], bool] | None = None,
        cost: Callable[[str], int] | None = None,
        patient: bool = False,
    ) -> Ticket | None:
        """The lane to serve one message now, if any. `cost(lane)` gives the estimate, which is 1 otherwise.

        Lanes that are not `eligible` keep their place and their balance. They are asked one by one, so for a
        lasting condition `block` is cheaper. `patient`: while a tier's round waits
        for a lane, the tiers below it wait, too.
        """
        lane = self._next(eligible, patient)
        if lane is None:
            return None
        if cost is None:
            lane.visible -= 1
            lane.balance -= 1
            return lane.ticket
        estimate = cost(lane.name)
        if estimate.__class__ is not int or estimate < 0:
            estimate = whole("cost", estimate, 0)
        lane.visible -= 1
        lane.balance -= estimate
        return Ticket(lane.name, estimate)

    def take(
        self, limit: int, eligible: Callable[[str], bool] | None = None, patient: bool = False
    ) -> Ticket | None:
        """As many picks at an estimate of 1 as are one lane's in a row, up to `limit`, on one ticket."""
        limit = whole("limit", limit, 1)
        lane = self._next(eligible, patient)
        if lane is None:
            return None
        taken = 1 if self._guarantees else min(limit, lane.visible, lane.balance)
        lane.visible -= taken
        lane.balance -= taken
        return Ticket(lane.name, taken)

    def _next(self, eligible: Callable[[str], bool] | None, patient: bool) -> Lane | None:
        if self._guarantees:
            due = strict.due(self._tiers)
            for rounds in due:
                lane = rounds.next(eligible)
                if lane is not None:
                    strict.served(self._tiers, rounds)
                    return lane
            if any(self._waits(rounds) for rounds in due):
                return None  # its messages are on their way, and the next service is theirs
        for rounds in self._tiers:
            lane = rounds.next(eligible)
            if lane is not None:
                if self._guarantees:
                    strict.served(self._tiers, rounds)
                return lane
            if patient and rounds.held and self._waits(rounds):
                return None
        return None

    def _waits(self, rounds: Rounds) -> bool:
        """True if other tiers are to wait for this one's messages."""
        return any(self._coming(name) for name in rounds.held)

    def settle(self, ticket: Ticket, cost: int | None = None, *, dry: bool | None = None) -> None:
        """Charge what the work really cost, failed or not; by default the estimate was right.

        What was not spent goes back to the lane, but a lane without work has no surplus. dry=True says that
        it ran out of work, dry=False that it did not and was only cut short, by an error or a deadline.
        Unless told, an idle lane is dry, and so is a ticket for several of which nothing came.
        """
        try:
            name, estimate = ticket
        except TypeError:
            raise ConfigError("ticket", ticket, "a Ticket(lane, estimate), as pick gives it") from None
        lane = self._lanes.get(name) or self._lane(name)
        if estimate.__class__ is not int or estimate < 0:
            estimate = whole("estimate", estimate, 0)
        if cost is None:
            cost = estimate
        elif cost.__class__ is not int or cost < 0:
            cost = whole("cost", cost, 0)
        if cost != estimate:
            lane.balance += estimate - cost
            if dry is None and cost < estimate:
                dry = lane.idle or (cost == 0 and estimate > 1)
        if dry and lane.balance > 0:
            lane.balance = 0

    def rewind(self) -> None:
        """Tickets that were settled at less, because their messages came back unserved, count as never given:
        lanes go on where they were, instead of catching up in turns of several rounds.
        """
        for rounds in self._tiers:
            rounds.rewind()

    # In bulk

    def plan(self, backlog: Mapping[str, int], budget: int) -> Counter[str]:
        """What each lane may take of a batch: exactly what `budget` picks would give, settled at 1 each.

        The backlog is complete: it replaces what was visible, nothing else is expected, and what is not
        granted stays visible.
        """
        budget = whole("budget", budget, 0)
        for name, n in backlog.items():
            if name not in self._lanes or n.__class__ is not int or n < 0:
                self._lane(name, "backlog")
                whole("backlog", n, 0)
        for name, lane in self._lanes.items():
            lane.visible = int(backlog.get(name, 0))
            lane.expected = 0
            if not lane.listed and ((lane.visible and not lane.blocked) or name in lane.rounds.held):
                lane.rounds.join(lane)
        grants: dict[str, int] = {}
        if self._guarantees:
            self._plan_tiers(budget, grants)
        else:
            for rounds in self._tiers:
                if budget:
                    budget = share_out(rounds, budget, grants)
        return Counter({name: grants[name] for name in self._lanes if name in grants})

    def _plan_tiers(self, budget: int, grants: dict[str, int]) -> None:
        waiting = [sum(lane.visible for lane in rounds.turns if not lane.blocked) for rounds in self._tiers]
        parts, last = strict.split(self._tiers, waiting, budget)
        for i, rounds in enumerate(self._tiers):
            share_out(rounds, parts[i], grants)
            if i != last and budget:
                rounds.ready()
        if sum(parts) < budget:
            strict.due(self._tiers)

    # Continuing in another process

    def state(self) -> dict[str, Any]:
        """Balances, rounds and the order of turns as plain JSON; not what is visible, expected or blocked."""
        return saved.save(self._tiers, self._lanes)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Lanes that no longer exist are left out; new ones, or in a new tier, start
        afresh.
        """
        saved.load(state, self._tiers, self._lanes)

    # Looking up

    def _lane(self, name: str, argument: str = "lane") -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            raise ConfigError(argument, name, f"one of {self._names()}")
        return lane

    def _names(self) -> str:
        names = [repr(name) for name in self._lanes]
        return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")

    def _rounds(self, tier: int) -> Rounds:
        """The tier's rounds, made when first needed; the list stays sorted, the highest tier first."""
        tier = whole("tier", tier, 0)
        for rounds in self._tiers:
            if rounds.tier == tier:
                return rounds
        rounds = Rounds(tier, self._quiet_first)
        self._tiers = sorted([*self._tiers, rounds], key=lambda rounds: rounds.tier)
        return rounds
