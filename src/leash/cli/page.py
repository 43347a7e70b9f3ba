"""`leash page`: the live page of a virtual host."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from leash.cli import output, which
from leash.errors import ConfigError, LeashError

_GATHER = 2.5  # seconds for a snapshot: two reports of everybody
_PATIENCE = 10.0  # and for a connection


def page(
    uri: which.BrokerUri = None,
    port: Annotated[
        int, typer.Option(help="The port to serve it on; 0 is any free one.", min=0, max=65535)
    ] = 8080,
    host: Annotated[
        str, typer.Option(help="The address to serve it on; 0.0.0.0 lets other machines look, too.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name (host:port) that browsers may use, as behind a proxy."),
    ] = None,
    allow_actions: Annotated[
        bool,
        typer.Option("--allow-actions", help="Let whoever has the printed address pause, retry, purge, ..."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Write a snapshot to --html and exit.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="The snapshot's file.", dir_okay=False)] = None,
) -> None:
    """Show all processes of a virtual host in a browser: shares, windows, rates, budgets, failures ...

    Processes report once a second through the exchange leash.stats; with report=False they are not seen.
    """
    from leash.amqp.uri import parse
    from leash.page.actions import Actions
    from leash.page.fleet import Fleet
    from leash.page.listen import Exchange
    from leash.page.server import Page

    if once != (html is not None):
        raise ConfigError("--html", None if html is None else str(html), "a file, together with --once")
    place = which.broker(uri)
    parsed = parse(place.uri)
    fleet = Fleet({"vhost": parsed.vhost, "broker": ", ".join(f"{name}:{at}" for name, at in parsed.hosts)})
    output.log_lines()
    if html is not None:
        _snapshot(fleet, place.uri, html)
        return
    served = Page(
        fleet,
        lambda heard: Exchange(place.uri, heard),
        Actions(place.uri) if allow_actions else None,
        tuple(allow_host or ()),
    )
    typer.echo(f"Leash page: {served.start(host, port)}")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    while not over.wait(1.0):
        pass
    served.stop()


def _snapshot(fleet: object, uri: str, path: Path) -> None:
    from leash.page import snapshot
    from leash.page.fleet import Fleet
    from leash.page.listen import Exchange

    assert isinstance(fleet, Fleet)
    lock = threading.Lock()

    def heard(now: float, report: object) -> None:
        with lock:
            fleet.heard(now, report)

    source = Exchange(uri, heard)
    try:
        deadline, heard_by = time.monotonic() + _PATIENCE, None
        while time.monotonic() < (heard_by or deadline):
            fleet.trouble = source.trouble
            if heard_by is None and fleet.trouble is None:
                heard_by = time.monotonic() + _GATHER
            time.sleep(0.25)
            with lock:
                view = fleet.tick(time.time())
        snapshot.write(path, view | {"history": fleet.history})
    finally:
        source.close()
    typer.echo(f"Snapshot: {path}")
    if fleet.trouble is not None:
        raise LeashError(f"the snapshot is empty, because nothing could be heard: {fleet.trouble}")
