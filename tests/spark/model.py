"""A small world in which production code runs one file or broker operation at a time, in any order we choose.

Actors are threads that take turns: each stops before every operation on shared state until it is picked, or
crashed. What an actor has seen decides what it does next, so (shared state, what each actor saw) is the
whole state of the world, and a state that was explored once need not be explored again.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

from leash.amqp import Properties, encode_properties
from leash.spark.staging.seals import Seal


def _closed_gate() -> threading.Lock:
    """A bare lock, for handing a turn over: far cheaper than a semaphore."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Crash(BaseException):
    """The actor's process was killed."""


class Actor:
    """`ready` says whether it may begin yet."""

    def __init__(self, name: str, body: Callable[[], None], ready: Callable[[], bool], mortal: bool) -> None:
        self.name, self.body, self.ready, self.mortal = name, body, ready, mortal
        self.history: list[object] = []
        self.status = "new"
        self.crash = False
        self.go = _closed_gate()
        self.thread: threading.Thread | None = None


class World:
    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.turn = _closed_gate()
        self.files = MemoryFiles(self)
        self.queue = MemoryQueue(self)
        self.facts: list[str] = []
        """What has become true for good, such as the end of a batch; part of the state."""
        self.crashes = 0

    def add(
        self,
        name: str,
        body: Callable[[], None],
        ready: Callable[[], bool] = lambda: True,
        mortal: bool = True,
    ) -> None:
        self.actors.append(Actor(name, body, ready, mortal))

    def me(self) -> Actor | None:
        mine = threading.current_thread()
        return next((actor for actor in self.actors if actor.thread is mine), None)

    def step(self) -> None:
        """Called before every shared operation."""
        actor = self.me()
        if actor is None:
            return
        if not actor.crash:
            self.turn.release()
            actor.go.acquire()
        if actor.crash:
            raise Crash
        actor.history.append(len(actor.history))

    def saw(self, what: object) -> None:
        actor = self.me()
        if actor is not None:
            actor.history.append(what)

    def choices(self, max_crashes: int) -> list[tuple[str, str]]:
        found = []
        for actor in self.actors:
            if actor.status == "running" or (actor.status == "new" and actor.ready()):
                found.append((actor.name, "go"))
                if actor.mortal and actor.status == "running" and self.crashes < max_crashes:
                    found.append((actor.name, "crash"))
        return found

    def do(self, choice: tuple[str, str]) -> None:
        actor = next(a for a in self.actors if a.name == choice[0])
        if choice[1] == "crash":
            actor.crash = True
            self.crashes += 1
        if actor.status == "new":
            actor.status = "running"
            actor.thread = threading.Thread(target=self._run, args=(actor,), daemon=True)
            actor.thread.start()
            self.turn.acquire()
            if actor.status != "running":
                return
        actor.go.release()
        self.turn.acquire()

    def _run(self, actor: Actor) -> None:
        try:
            actor.body()
            actor.status = "done"
        except Crash:
            actor.status = "crashed"
            self.queue.connection_lost(actor.name)
        except Exception as error:
            actor.status = "failed"
            actor.history.append(type(error).__name__)
        finally:
            self.turn.release()

    def abandon(self) -> None:
        """End the threads of a world that is of no more interest."""
        for actor in self.actors:
            if actor.status == "running":
                actor.crash = True
                actor.go.release()
                self.turn.acquire()

    def key(self) -> object:
        return (
            self.files.key(),
            self.queue.key(),
            tuple(self.facts),
            self.crashes,
            tuple((a.name, a.status, tuple(a.history)) for a in self.actors),
        )


def explore(build: Callable[[], World], max_crashes: int, check: Callable[[World], None]) -> tuple[int, int]:
    """Every interleaving, depth first. Returns how many states there are, and how many ways to end."""
    seen: set[object] = set()
    ends = 0
    todo: list[list[tuple[str, str]]] = [[]]
    while todo:
        path = todo.pop()
        world = build()
        for choice in path:
            world.do(choice)
        while True:
            key = world.key()
            if key in seen:
                break
            seen.add(key)
            choices = world.choices(max_crashes)
            if not choices:
                check(world)
                ends += 1
                break
            todo.extend([*path, other] for other in choices[1:])
            path = [*path, choices[0]]
            world.do(choices[0])
        world.abandon()
    return len(seen), ends


class MemoryFiles:
    """`leash.spark.staging.files.Files`, in memory. Chunk files are private to their attempt: no step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.data: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        self.world.step()
        found = self.data.get(path)
        self.world.saw((path, _digest(path, found)))
        return found

    def create(self, path: str, data: bytes) -> None:
        self.world.step()
        if path in self.data:
            self.world.saw("taken")
            raise FileExistsError(path)
        self.data[path] = data
        self.world.saw("created")

    def replace(self, path: str, data: bytes) -> None:
        self.world.step()
        self.data[path] = data

    def delete(self, path: str) -> None:
        self.world.step()
        self.data.pop(path, None)

    def delete_folder(self, path: str) -> None:
        self.world.step()
        for name in [name for name in self.data if name.startswith(path + "/")]:
            del self.data[name]

    def names(self, folder: str) -> list[str]:
        # No step: what the driver lists matters to nobody else, and what it deletes afterwards is one.
        prefix = folder + "/"
        found = sorted({name[len(prefix) :].split("/")[0] for name in self.data if name.startswith(prefix)})
        self.world.saw(tuple(found))
        return found

    def writer(self, path: str) -> io.BytesIO:
        return io.BytesIO(path.encode())

    def reader(self, path: str) -> io.BytesIO:
        raise FileNotFoundError(path)

    def key(self) -> object:
        return tuple(sorted((path, _digest(path, data)) for path, data in self.data.items()))


def _digest(path: str, data: bytes | None) -> object:
    """Timings differ from run to run; whose seal it is does not."""
    return Seal.decode(path, data).attempt if data is not None and path.endswith(".seal") else data


class Lot:
    def __init__(self, messages: list[tuple[bytes, bool]]) -> None:
        self.bodies = [body for body, _ in messages]
        self.redelivered = [flag for _, flag in messages]
        self.exchanges = self.routing_keys = [""] * len(messages)
        self.properties = [
            encode_properties(Properties(message_id=body[:20].decode())) for body, _ in messages
        ]

    def __len__(self) -> int:
        return len(self.bodies)


class MemoryQueue:
    """A queue that flags what it hands out again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ready: list[tuple[bytes, bool]] = []
        self.held: dict[str, list[tuple[bytes, bool]]] = {}

    def taker(self, owner: str) -> MemoryTaker:
        return MemoryTaker(self._world, self, owner)

    def connection_lost(self, owner: str) -> None:
        self.ready = sorted([(body, True) for body, _ in self.held.pop(owner, [])] + self.ready)

    def key(self) -> object:
        return (tuple(self.ready), tuple(sorted((who, tuple(what)) for who, what in self.held.items())))


class MemoryTaker:
    ended = "filled"
    left_behind = None

    def __init__(self, world: World, queue: MemoryQueue, owner: str) -> None:
        self._world, self._queue, self._owner = world, queue, owner

    def lots(self, grant: int) -> Iterator[Any]:
        self._world.step()
        taken, self._queue.ready = self._queue.ready[:grant], self._queue.ready[grant:]
        self._queue.held[self._owner] = taken
        self._world.saw(tuple(taken))
        if taken:
            yield Lot(taken)

    def confirm(self) -> None:
        pass

    def ack(self) -> None:
        self._world.step()
        self._queue.held.pop(self._owner, None)

    def give_back(self) -> None:
        self._world.step()
        self._queue.connection_lost(self._owner)
