"""`leash broker`: a private node or cluster on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from leash.amqp import connect
from leash.amqp.uri import parse
from leash.broker import Broker, Cluster, Private, at, default_folder, own_uri
from leash.errors import AmqpError, ConfigError

broker_app = typer.Typer(
    help="A private RabbitMQ node or cluster on this machine, to try things out. "
    "With LEASH_URI set, everything uses that broker instead.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where it keeps its files (default: your state folder).", file_okay=False),
]


@broker_app.command()
def start(
    folder: Folder = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", help="The number of nodes; more than one form a cluster (default: 1, or as before)."
        ),
    ] = None,
) -> None:
    """Start it in the background, unless it is running; returns when it is ready."""
    place = _wanted(folder or default_folder(), nodes)
    if _own_is_used(place):
        return
    there = all(node.running for node in place.nodes)

    def progress(seconds: float) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\rStarting RabbitMQ ... {seconds:3.0f} s", err=True, nl=False)

    if not sys.stderr.isatty() and not there:
        typer.echo("Starting RabbitMQ (about 10 s) ...", err=True)
    place.start(progress)
    if sys.stderr.isatty() and not there:
        typer.echo("\r", err=True, nl=False)
    typer.echo(f"{'Found running' if there else 'Ready'}: {place.shown()}")
    port = place.nodes[0].port("management")
    typer.echo(f"Management: http://127.0.0.1:{port}  (user and password: `leash broker uri`)")


@broker_app.command()
def status(folder: Folder = None) -> None:
    """Show which nodes run, and where; exit status 1 if one does not."""
    place = at(folder or default_folder())
    if _own_is_used(place):
        connect(own_uri() or "").close()
        typer.echo("It answers.")
        return
    if not place.running:
        typer.echo("Not running.")
        raise typer.Exit(1)
    good = [_state(node) for node in place.nodes]
    typer.echo(f"files: {place.folder}")
    if not all(good):
        raise typer.Exit(1)


def _state(node: Broker) -> bool:
    """Print a node's state; True if it takes connections."""
    if not node.running:
        typer.echo(f"Not running: {node.shown()}")
        return False
    try:
        with connect(node.uri, name="leash broker status") as connection:
            typer.echo(f"Running: {node.shown()}, RabbitMQ {connection.server['version']}")
    except AmqpError as error:
        typer.echo(f"Running, but takes no connections: {error}")
        return False
    for name in ("management", "prometheus", "stream"):
        typer.echo(f"  {name}: 127.0.0.1:{node.port(name)}")
    return True


@broker_app.command()
def stop(
    folder: Folder = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its data too.")] = False,
    node: Annotated[
        int | None,
        typer.Option("--node", help="Only this node of a cluster: 1, 2 or so on. `start` brings it back."),
    ] = None,
) -> None:
    """Stop it and all its processes."""
    place = at(folder or default_folder())
    if _own_is_used(place):
        return
    if node is not None:
        if purge:
            raise ConfigError("--purge", True, "not with --node: the others need its data")
        if not 1 <= node <= len(place.nodes):
            raise ConfigError("--node", node, f"a number from 1 to {len(place.nodes)}")
        place = place.nodes[node - 1]
    ran = place.running
    place.stop(purge=purge)
    typer.echo(("Stopped" if ran else "Was not running") + (", data deleted." if purge else "."))


@broker_app.command()
def uri(folder: Folder = None) -> None:
    """Print its URI with the password, for other programs: export LEASH_URI=$(leash broker uri)"""
    typer.echo(own_uri() or at(folder or default_folder()).uri)


def _wanted(folder: Path, nodes: int | None) -> Private:
    """The node or cluster in the folder, or a new one."""
    place = at(folder)
    if isinstance(place, Cluster) or (nodes or 1) > 1:
        return Cluster(folder, nodes)
    if nodes is not None and nodes < 1:
        raise ConfigError("--nodes", nodes, "a whole number from 1 to 9")
    return place


def _own_is_used(place: Private) -> bool:
    """True, with a line that says so, if LEASH_URI names another broker."""
    own = own_uri()
    if own is None or (place.exists and own == place.uri):
        return False
    typer.echo(f"LEASH_URI is set, so this broker is used: {parse(own)}")
    return True
