"""`leash consume module:name`: finds a consumer, runs it, and shows what it does until it ends."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from leash.cli import output
from leash.errors import ConfigError, NotDrained
from leash.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from leash.cli.looks import Looks
    from leash.consumer import Consumer

_SHAPE = "module:name of a Consumer, like app:consumer"


def consume(
    app: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="Where the Consumer is, like app:consumer.", show_default=False
        ),
    ],
    every: Annotated[
        float | None,
        typer.Option(
            help="Seconds between two looks at the queues (default: 1 for a table, 10 for lines).",
            min=0.1,
            show_default=False,
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Print lines instead of a table, even on a terminal: one for each queue."
        ),
    ] = False,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve /healthz, /readyz and /metrics there; a port alone is for this machine only.",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve the live page of this process there."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(help="Run this many processes; --health serves the metrics of all.", min=1, max=1000),
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="The same as --health, with the host in --metrics-host.", min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address to serve metrics on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
) -> None:
    """Run a consumer until SIGINT or SIGTERM (a second one: exit at once), and show the state of its queues.

    Exit status: 0 everything was finished; 1 an error; 2 wrong usage; 3 the drain time ran out, and some
    messages are redelivered; 130 or 143 a second signal.

    depth: messages waiting at the broker. share and target: its share of the work, and its share by quantum.
    window: how many messages the broker may send ahead. wait: how long they waited here for a worker.
    """
    consumer = find(app)
    if metrics_port is not None:
        host = f"[{metrics_host}]" if ":" in metrics_host else metrics_host
    if processes > 1:
        if page is not None:
            raise ConfigError("--page", page, "one process: `leash page` shows all processes of a fleet")
        if health is not None and metrics_port is not None:
            raise ConfigError("--metrics-port", metrics_port, "--health alone, with --processes")
        where, argument = (
            (health, "--health") if metrics_port is None else (f"{host}:{metrics_port}", "--metrics-port")
        )
        _supervise(app, processes, every, plain, where, argument)
    with ExitStack() as stack:
        from leash.consumer.health import serve_health

        if health is not None:
            stack.callback(serve_health(consumer, health, "--health"))
        if metrics_port is not None:
            stack.callback(serve_health(consumer, f"{host}:{metrics_port}", "--metrics-port"))
        if page is not None:
            stack.callback(_serve_page(consumer, page))
        run(consumer, every, plain)


def _supervise(
    app: str, count: int, every: float | None, plain: bool, where: str | None, argument: str
) -> NoReturn:
    from leash.cli.processes import supervise

    _log_to(None)
    more = [*(["--every", str(every)] if every is not None else []), *(["--plain"] if plain else [])]
    raise typer.Exit(supervise(app, count, more, where, argument))


def _serve_page(consumer: Consumer, where: str) -> Callable[[], None]:
    from leash.consumer.health import address
    from leash.page.fleet import Fleet
    from leash.page.listen import Own
    from leash.page.server import Page

    uri = consumer.settings.uri
    fleet = Fleet({"vhost": uri.vhost, "broker": ", ".join(f"{name}:{at}" for name, at in uri.hosts)})
    served = Page(fleet, lambda heard: Own(consumer, heard))
    typer.echo(f"Leash page: {served.start(*address('--page', where))}", err=True)
    return served.stop


def find(app: str) -> Consumer:
    """Import a consumer, also from the current folder."""
    from leash.cli.user_code import load
    from leash.consumer import Consumer

    module, _, name = app.partition(":")
    if not name or not all(module.split(".")):  # no relative names
        raise ConfigError("app", app, _SHAPE)
    found = load("app", app, module, _SHAPE)
    consumer = getattr(found, name, None)
    if not isinstance(consumer, Consumer):
        what = "nothing" if consumer is None else f"a {type(consumer).__name__}"
        raise ConfigError("app", app, f"{_SHAPE}; {name!r} is {what} in {module}")
    return consumer


class _Over(threading.Event):
    """Set when the consumer has ended."""

    how = "stopped"
    """What the last table says about it."""


def run(consumer: Consumer, every: float | None, plain: bool) -> None:
    """Run until a signal. The consumer needs the main thread, for the signals; another shows its state."""
    from rich.console import Console

    if os.environ.pop("LEASH_SUPERVISED", ""):  # not for what handlers start
        from leash.cli.processes import end_with_supervisor

        end_with_supervisor()
    console = Console()
    live = console.is_terminal and not plain
    _log_to(console if live else None)
    over = _Over()
    show = _show_table if live else _show_queues if plain else _show_summary
    usual = 1.0 if live else 10.0
    shower = threading.Thread(
        target=show,
        args=(consumer, console, usual if every is None else every, over),
        name="leash-view",
        daemon=True,
    )
    shower.start()
    try:
        consumer.run()
        over.how = "stopped: everything that was begun is finished"
    except NotDrained as error:
        left = counted(error.in_work + error.unconfirmed, "message")
        over.how = f"stopped: {left} left, to be delivered again"
        raise
    finally:
        over.set()
        shower.join(5)


def _log_to(console: Console | None) -> None:
    """Log only warnings beside a table; log everything to stderr, in logfmt, with lines."""
    if console is None:
        output.log_lines()
    else:
        from rich.logging import RichHandler

        logging.basicConfig(
            level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console, markup=False)]
        )


def _look(consumer: Consumer, every: float, over: _Over, show: Callable[[Looks, str], None]) -> None:
    """Show it every so often, and once more with how it ended."""
    from leash.cli.looks import Looks

    looks = Looks()
    while True:
        ended = over.wait(every)
        try:
            looks.add(consumer.stats())
        except ConfigError:  # not started yet
            if ended:
                return
            continue
        try:
            show(looks, over.how if ended else "")
        except BrokenPipeError:  # nobody reads any more, as after `| head`; the work goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return
        if ended:
            return


def _show_table(consumer: Consumer, console: Console, every: float, over: _Over) -> None:
    from rich.live import Live

    from leash.cli import consume_table

    with Live(console=console, auto_refresh=False) as live:

        def show(looks: Looks, ended: str) -> None:
            live.update(consume_table.table(looks, console.width, console.height, ended), refresh=True)

        _look(consumer, every, over, show)


def _show_summary(consumer: Consumer, console: Console, every: float, over: _Over) -> None:
    from leash.cli import consume_table

    def show(looks: Looks, _: str) -> None:
        print(consume_table.line(looks), file=console.file, flush=True)  # no markup, no wrapping

    _look(consumer, every, over, show)


def _show_queues(consumer: Consumer, console: Console, every: float, over: _Over) -> None:
    from leash.cli import consume_table

    def show(looks: Looks, _: str) -> None:
        print(*consume_table.lines(looks), sep="\n", file=console.file, flush=True)

    _look(consumer, every, over, show)
