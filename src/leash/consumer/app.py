"""`leash consume module:name`: find the consumer, run it, and show what it does until it ends."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler

from leash.consumer import view
from leash.consumer.consumer import Consumer
from leash.consumer.stats import Stats
from leash.errors import ConfigError

_SHAPE = "module:name of a Consumer, like app:consumer"


def find(app: str) -> Consumer:
    """Import it, from the current folder too."""
    module, _, name = app.partition(":")
    if not name or not all(module.split(".")):  # a relative one has no package here
        raise ConfigError("app", app, _SHAPE)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError("app", app, f"{_SHAPE}; no module named {error.name!r} from here") from error
    consumer = getattr(found, name, None)
    if not isinstance(consumer, Consumer):
        what = "nothing" if consumer is None else f"a {type(consumer).__name__}"
        raise ConfigError("app", app, f"{_SHAPE}; {name!r} is {what} in {module}")
    return consumer


def run(consumer: Consumer, every: float, plain: bool) -> None:
    """Until a signal ends it. The consumer has the main thread, for the signals; showing has another."""
    console = Console()
    live = console.is_terminal and not plain
    _log_to(console if live else None)
    over = threading.Event()
    show = _show_table if live else _show_lines
    shower = threading.Thread(
        target=show, args=(consumer, console, every, over), name="leash-view", daemon=True
    )
    shower.start()
    try:
        consumer.run()
    finally:
        over.set()
        shower.join(5)


def _log_to(console: Console | None) -> None:
    """Beside a table only what matters; as lines everything, on stderr."""
    if console is None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    else:
        logging.basicConfig(
            level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console, markup=False)]
        )


def _looks(
    consumer: Consumer, every: float, over: threading.Event, show: Callable[[Stats | None, Stats], None]
) -> None:
    before: Stats | None = None
    while True:
        ended = over.wait(every)
        try:
            now = consumer.stats()
        except ConfigError:  # not started yet
            if ended:
                return
            continue
        show(before, now)
        before = now
        if ended:
            return


def _show_table(consumer: Consumer, console: Console, every: float, over: threading.Event) -> None:
    with Live(console=console, auto_refresh=False) as live:
        _looks(consumer, every, over, lambda before, now: live.update(view.table(before, now), refresh=True))


def _show_lines(consumer: Consumer, console: Console, every: float, over: threading.Event) -> None:
    def show(before: Stats | None, now: Stats) -> None:
        for line in view.lines(before, now):
            print(line, file=console.file, flush=True)  # as it is: no markup, no wrapping

    _looks(consumer, every, over, show)
