"""The live consumer in virtual time: the same Flow, with a simulated broker, network and workers around it.

Deterministic: the same description gives the same run, event by event.

    clock.py              virtual time
    simulated_queues.py   the broker's queues
    simulated_budget.py   budgets that several pools share
    trace.py              what Flow was told and what it answered, to be replayed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from leash.errors import ConfigError
from leash.flow import Ask, Dispatch, Flow, Probe, SetWindow, Shed
from leash.flow.flow import TICK
from leash.lab.clock import AT_BROKER, AT_CLIENT, DONE, WAKE, Clock, Wire
from leash.lab.simulated_budget import Till, Wheel
from leash.lab.simulated_queues import Consumer, Queue
from leash.lab.trace import Recorder

Service = Callable[[str, int], int]
"""How long a lane's message takes, in ns, by its number in the order of publishing."""


class Log:
    """What happened. Times in ns."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self.served = dict.fromkeys(lanes, 0)
        self.starts: list[tuple[int, str, int]] = []
        """When work on a message began, its lane, and how long it had waited here."""
        self.windows: list[tuple[int, str, int, str]] = []
        self.sheds: list[tuple[int, str, str]] = []
        self.latencies: list[int] = []
        """From publishing to the end of the work, for queues that record when a message was published."""
        self.busy = 0
        """Work that was begun, even if it ends after the run."""

    def waits(self, since: int = 0, lane: str | None = None) -> list[int]:
        return [wait for at, name, wait in self.starts if at >= since and lane in (None, name)]

    def mean_wait(self, since: int = 0, lane: str | None = None) -> float:
        waits = self.waits(since, lane)
        return sum(waits) / len(waits) if waits else 0.0


class Link:
    """One lane's subscriptions by epoch, and the window to come."""

    __slots__ = ("consumers", "current", "pending", "queue", "unsettled")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.consumers: dict[int, Consumer] = {}
        self.current: Consumer | None = None
        self.pending: SetWindow | None = None
        self.unsettled = 0


class Pool:
    """A consumer process: the workers of a flow, on one connection with `up` and `down` ns of delay.

    The lanes are the queues of the same names. `sizes` are the messages' bytes, by lane and number. `most`
    is the largest batch for a worker (None: as Flow sees fit). `trace` records what is needed to replay the
    decisions; `detail` keeps every start. `wheels` are the budgets of the flow's purses, which pools share.
    """

    def __init__(
        self,
        clock: Clock,
        flow: Flow,
        queues: Iterable[Queue],
        service: Service | int,
        *,
        up: int = 0,
        down: int = 0,
        costs: Service | None = None,
        sizes: Service | None = None,
        most: int | None = None,
        detail: bool = True,
        trace: bool = False,
        wheels: Iterable[Wheel] = (),
    ) -> None:
        if trace and flow.purses:
            raise ConfigError("trace", trace, "a flow without budgets: a trace does not record their permits")
        self.clock = clock
        self.state = flow
        self.trace = Recorder(flow) if trace else None
        self.flow: Flow | Recorder = self.trace or flow
        self.up, self.down = Wire(clock, up, AT_BROKER), Wire(clock, down, AT_CLIENT)
        self.links = {queue.name: Link(queue) for queue in queues}
        self.service = service
        self.log = Log(flow.lanes)
        self._costs, self._sizes, self._most, self._detail = costs, sizes, most, detail
        self._idle = deque([clock.now] * flow.workers)
        self._woken: int | None = None
        budgets = {wheel.budget.name: wheel for wheel in wheels}
        self._tills = {
            purse.name: Till(clock, budgets[purse.name], purse, self.up, self.down, self._permitted)
            for purse in flow.purses
        }
        for name, link in self.links.items():
            self._subscribe(link, flow.lanes[name].credit, 0)
        clock.at(clock.now, WAKE, self._tick)

    def set_delay(self, up: int, down: int) -> None:
        """Change the network's delay."""
        self.up.delay, self.down.delay = up, down

    @property
    def total(self) -> int:
        """The number of messages begun."""
        return sum(self.log.served.values())

    @property
    def in_work(self) -> int:
        return sum(lane.in_work for lane in self.state.lanes.values())

    # --- arrivals ---

    def _subscribe(self, link: Link, window: int, epoch: int) -> None:
        link.current = Consumer(link.queue, window, self.down, self._arrive, epoch)
        link.consumers[epoch] = link.current
        self.up.send(link.queue.subscribe, link.current)

    def _arrive(self, consumer: Consumer, numbers: list[int]) -> None:
        now, epoch, name = self.clock.now, consumer.epoch, consumer.queue.name
        self.clock.messages += len(numbers)
        self.links[name].unsettled += len(numbers)
        costs = None if self._costs is None else [self._costs(name, number) for number in numbers]
        size = None if self._sizes is None else sum([self._sizes(name, number) for number in numbers])
        self.flow.arrive(now, name, [(number, now, epoch) for number in numbers], costs, None, epoch, size)
        if self._idle:
            self._dispatch()

    # --- workers ---

    def _dispatch(self) -> None:
        """Give work to idle workers."""
        now, idle = self.clock.now, self._idle
        while idle:
            since = idle[0]
            work = self.flow.take(now, self._most, since if since < now else None)
            if not work:
                break
            idle.popleft()
            self._start(work)
        if self.state.decisions:
            self._carry_out()
        if idle:
            self._wake_up()

    def _start(self, work: list[Dispatch]) -> None:
        now, log, service = self.clock.now, self.log, self.service
        services = []
        for lane, messages, *_ in work:
            count = len(messages)
            log.served[lane] += count
            if isinstance(service, int):
                spent = service * count
            else:
                spent = sum([service(lane, message[0]) for message in messages])
            services.append(spent)
            if self._detail:
                log.starts.extend([(now, lane, now - message[1]) for message in messages])
            self.clock.messages += count
        busy = sum(services)
        log.busy += busy
        self.clock.at(now + busy, DONE, self._done, work, services)

    def _done(self, work: list[Dispatch], services: list[int]) -> None:
        now = self.clock.now
        self.flow.done(now, work, services)
        for lane, messages, *_ in work:
            link = self.links[lane]
            self.clock.messages += len(messages)
            link.unsettled -= len(messages)
            born = link.queue.born
            if born is not None:
                self.log.latencies.extend([now - born[message[0]] for message in messages])
            if messages[0][2] == messages[-1][2]:
                self._ack(link, messages[0][2], len(messages))
            else:
                for message in messages:
                    self._ack(link, message[2], 1)
            if link.pending is not None:
                self._resume(link)
        self._idle.append(now)
        self._dispatch()

    def _ack(self, link: Link, epoch: int, count: int) -> None:
        self.up.send(link.queue.ack, link.consumers[epoch], count)

    # --- time ---

    def _tick(self) -> None:
        self.flow.tick(self.clock.now)
        self._dispatch()
        self.clock.at(self.clock.now + TICK, WAKE, self._tick)

    def _wake_up(self) -> None:
        """Wake a waiting worker at Flow's next timer."""
        now = self.clock.now
        wait = self.state.wait(now)
        if wait is None:
            return
        due = now + max(1, wait)
        if self._woken is None or due < self._woken:
            self._woken = due
            self.clock.at(due, WAKE, self._on_wake, due)

    def _on_wake(self, due: int) -> None:
        if self._woken == due:
            self._woken = None
            self._dispatch()

    # --- Flow's decisions ---

    def _carry_out(self) -> None:
        decisions = self.state.decisions[:]
        self.state.decisions.clear()
        for decision in decisions:
            if isinstance(decision, Ask):
                self._tills[decision.budget].look()
                continue
            link = self.links[decision.lane]
            if isinstance(decision, SetWindow):
                self._resize(link, decision)
            elif isinstance(decision, Probe):
                self.up.send(self._probe, link, self.clock.now)
            else:
                self._shed(link, decision)

    def _permitted(self) -> None:
        self.state.told(self.clock.now)
        self._dispatch()

    def _resize(self, link: Link, change: SetWindow) -> None:
        self.log.windows.append((self.clock.now, change.lane, change.window, change.reason))
        if link.current is not None:
            self.up.send(link.queue.cancel, link.current)
            link.current = None
        link.pending = change
        self._resume(link)

    def _resume(self, link: Link) -> None:
        """Consume again when few enough of the old window's messages are left."""
        change = link.pending
        assert change is not None
        if change.resume is None or link.unsettled <= change.resume:
            link.pending = None
            self._subscribe(link, change.window, change.epoch)

    def _shed(self, link: Link, shed: Shed) -> None:
        number, _, epoch = shed.message
        link.unsettled -= 1
        self.log.sheds.append((self.clock.now, shed.lane, shed.kind))
        self.up.send(link.queue.nack, link.consumers[epoch], [number], shed.kind == "return")

    def _probe(self, link: Link, asked: int) -> None:
        queue = link.queue
        self.down.send(self._probed, queue.name, queue.ready, queue.consumers, asked)

    def _probed(self, name: str, ready: int, consumers: int, asked: int) -> None:
        self.flow.probed(self.clock.now, name, ready, consumers, self.clock.now - asked)
        if self._idle:
            self._dispatch()
