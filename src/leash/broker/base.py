"""What a private node and a private cluster have in common: a folder, a URI, an owner, a start and an end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leash.amqp.uri import Uri
from leash.broker import processes
from leash.errors import BrokerError
from leash.management import Management

if TYPE_CHECKING:
    from leash.broker.node import Broker

Progress = Callable[[float], None]
"""Called with the seconds since the start, several times a second, until the broker is ready."""


class Private(ABC):
    """A private node or cluster in `folder`.

    With `owned`, it ends with this process, even if this process is killed: a watchdog sees to that.
    Otherwise it runs until it is stopped. As a context manager, it is started and stopped.
    """

    def __init__(self, folder: Path | str, file: str, owned: bool) -> None:
        self.folder = Path(folder).resolve()  # one spelling: its processes are marked with it
        self.file = self.folder / file
        self._owned = owned
        self._watchdog: tuple[int, str] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.folder}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exists(self) -> bool:
        """True if its folder holds one, running or not."""
        return self.file.exists()

    @property
    @abstractmethod
    def nodes(self) -> Sequence[Broker]:
        """The nodes of a cluster; a single node itself."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """True if it runs; for a cluster, if one of its nodes does."""

    @property
    @abstractmethod
    def management(self) -> Management:
        """Its management plugin."""

    @abstractmethod
    def place(self, vhost: str = "/") -> Uri:
        """Its address and credentials."""

    @property
    def uri(self) -> str:
        """Its URI with the password: for programs, not for logs."""
        return self.place().reveal()

    def uri_of(self, vhost: str) -> str:
        """The URI of one of its virtual hosts, password included."""
        return self.place(vhost).reveal()

    def stream_place(self, vhost: str = "/") -> Uri:
        """The same for the stream protocol."""
        hosts = tuple(("127.0.0.1", node.port("stream")) for node in self.nodes)
        return replace(self.place(vhost), hosts=hosts, scheme="rabbitmq-stream")

    @property
    def stream_uri(self) -> str:
        """For clients of streams, with the password in it: for programs, not for logs."""
        return self.stream_place().reveal()

    def shown(self) -> str:
        """The URI as it may be printed."""
        return str(self.place())

    def start(self, progress: Progress | None = None) -> None:
        """Start it in the background and return once it answers; at once if it is running."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            if self._owned and (self._watchdog is None or not processes.alive(*self._watchdog)):
                self._watchdog = processes.watch_owner(self.folder)
            self._start(progress)

    def stop(self, *, purge: bool = False) -> None:
        """Stop it cleanly; with `purge` delete its data too. It need not be running."""
        if self.folder.exists():
            with self._locked():
                self._end(signal.SIGTERM)
            if purge:
                shutil.rmtree(self.folder)
        if self._watchdog is not None:
            processes.kill(*self._watchdog)
            self._watchdog = None

    @abstractmethod
    def _start(self, progress: Progress | None) -> None: ...

    @abstractmethod
    def _end(self, sign: signal.Signals) -> None: ...

    def read_state(self) -> dict[str, Any] | None:
        try:
            known: dict[str, Any] = json.loads(self.file.read_text())
        except FileNotFoundError:
            return None
        return known

    def known(self) -> dict[str, Any]:
        known = self.read_state()
        if known is None:
            raise BrokerError(f"there is no broker in {self.folder}: start one with `leash broker start`")
        return known

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
