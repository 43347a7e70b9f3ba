"""`leash consume module:name`: finds a consumer, runs it, and shows what it does until it ends."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leash.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from leash.consumer import Consumer, Stats

_SHAPE = "module:name of a Consumer, like app:consumer"


def consume(
    app: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="Where the Consumer is, like app:consumer.", show_default=False
        ),
    ],
    every: Annotated[float, typer.Option(help="Seconds between two looks at the queues.", min=0.1)] = 1.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines instead of a table, even on a terminal.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this port.", min=0, max=65535)
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address to serve metrics on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
) -> None:
    """Run a consumer until SIGINT or SIGTERM (twice: leave at once), and show the state of its queues.

    depth: messages waiting at the broker. share and target: its share of the work, and its share by quantum.
    window: how many messages the broker may send ahead. wait: how long they waited here for a worker.
    """
    consumer = find(app)
    with ExitStack() as stack:
        if metrics_port is not None:
            from leash.consumer.metrics import serve_metrics

            stack.callback(serve_metrics(consumer, metrics_port, metrics_host))
        run(consumer, every, plain)


def find(app: str) -> Consumer:
    """Import a consumer, also from the current folder."""
    from leash.consumer import Consumer

    module, _, name = app.partition(":")
    if not name or not all(module.split(".")):  # no relative names
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
    """Run until a signal. The consumer needs the main thread, for the signals; another shows its state."""
    from rich.console import Console

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
    """Log only warnings beside a table; log everything to stderr with lines."""
    if console is None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    else:
        from rich.logging import RichHandler

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
    from rich.live import Live

    from leash.cli import consume_table

    with Live(console=console, auto_refresh=False) as live:
        _looks(
            consumer,
            every,
            over,
            lambda before, now: live.update(consume_table.table(before, now), refresh=True),
        )


def _show_lines(consumer: Consumer, console: Console, every: float, over: threading.Event) -> None:
    from leash.cli import consume_table

    def show(before: Stats | None, now: Stats) -> None:
        for line in consume_table.lines(before, now):
            print(line, file=console.file, flush=True)  # no markup, no wrapping

    _looks(consumer, every, over, show)
