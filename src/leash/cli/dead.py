"""`leash dead`: shows parked messages, sends them back to their queue, or drops them."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leash.cli import which
from leash.cli.output import Json, say
from leash.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leash.amqp import Connection
    from leash.consumer.dead_queue import Parked
    from leash.management import Management

dead_app = typer.Typer(
    help="Messages that failed for the last time: parked in leash.dead.<queue>, with the error in a header.",
    no_args_is_help=True,
)

QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The work queue, like orders.", show_default=False)
]


@dead_app.command("list")
def list_(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUEUE]...", help="Work queues (default: all).", show_default=False),
    ] = None,
    uri: which.BrokerUri = None,
    json: Json = False,
) -> None:
    """Count the parked messages of each queue.

    Without names, the management plugin lists the queues (at LEASH_MANAGEMENT_URL, or port 15672).
    """
    from leash.consumer import dead_queue

    with _connected(uri) as (connection, management):
        names = [dead_queue.plain(name) for name in queues or []]
        if not names:
            names = dead_queue.known(management, connection.uri.vhost)
        counts = {name: dead_queue.count(connection, name) for name in names}
    if json:
        say([{"queue": name, "parked": count} for name, count in counts.items()])
        return
    if not counts:
        typer.echo("No queue has parked messages.")
    width = max([len(shown(name)) for name in counts], default=0)
    for name, count in counts.items():
        typer.echo(f"{shown(name):<{width}}  {count}")


@dead_app.command()
def show(
    queue: QueueName,
    limit: Annotated[int, typer.Option(help="How many to show, oldest first.", min=1)] = 10,
    size: Annotated[int, typer.Option("--bytes", help="How many bytes of each body to show.", min=0)] = 200,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the whole traceback too.")] = False,
    uri: which.BrokerUri = None,
    json: Json = False,
) -> None:
    """Show parked messages, with the error, headers and the beginning of the body. They stay parked.

    (In a quorum queue, shown messages move to the end.)
    """
    from leash.consumer import dead_queue

    with _connected(uri) as (connection, _):
        there = dead_queue.count(connection, queue)
        found = dead_queue.look(connection, queue, limit)
    if json:
        say(
            {
                "queue": dead_queue.plain(queue),
                "parked": there,
                "messages": [_told(each, size) for each in found],
            }
        )
        return
    for number, message in enumerate(found, 1):
        typer.echo(f"{number}. {shown(message.error)}")
        tries = counted(message.tries, "time") if message.tries else "? times"
        typer.echo(f"   failed {tries}, published to {shown(message.address)}")
        for name, value in message.others.items():
            typer.echo(f"   {shown(name)}: {shown(value)}")
        typer.echo(f"   body, {counted(len(message.body), 'byte')}: {preview(message.body, size)}")
        if traceback:
            for line in message.traceback.splitlines():
                typer.echo(f"   | {shown(line)}")
    typer.echo(f"{len(found)} of {there} parked messages of {shown(dead_queue.plain(queue))}")


@dead_app.command()
def retry(
    queue: QueueName,
    limit: Annotated[int | None, typer.Option(help="How many, oldest first (default: all).", min=1)] = None,
    uri: which.BrokerUri = None,
) -> None:
    """Send parked messages back to their queue, with a full set of tries.

    Each is published with a confirm before it leaves the dead queue: none is lost, and if this command is
    killed in between, some exist twice.
    """
    from leash.amqp import connect
    from leash.consumer import dead_queue

    with _connected(uri) as (connection, _), connect(connection.uri, name="leash dead") as publishing:
        moved = dead_queue.send_back(connection, publishing, queue, limit)
    typer.echo(f"{counted(moved, 'message')} sent back to {shown(dead_queue.plain(queue))}")


@dead_app.command()
def purge(
    queue: QueueName,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    uri: which.BrokerUri = None,
) -> None:
    """Drop a queue's parked messages for good; asks first."""
    from leash.consumer import dead_queue

    with _connected(uri) as (connection, _):
        there = dead_queue.count(connection, queue)
        name = shown(dead_queue.plain(queue))
        if not there:
            typer.echo(f"There are no parked messages of {name}.")
            return
        if not yes:
            typer.confirm(f"Drop the {counted(there, 'parked message')} of {name} for good?", abort=True)
        typer.echo(f"{counted(dead_queue.purge(connection, queue), 'message')} of {name} dropped")


def _told(message: Parked, size: int) -> dict[str, Any]:
    """A parked message for programs; its body as text where it is text, else in base64."""
    head = message.body[:size]
    try:
        body = {"body": head.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(head).decode()}
    return {
        "error": message.error,
        "tries": message.tries,
        "published_to": message.address,
        "headers": message.others,
        "bytes": len(message.body),
        **body,
        "traceback": message.traceback,
    }


@contextmanager
def _connected(uri: str | None) -> Iterator[tuple[Connection, Management]]:
    from leash.amqp import connect

    place = which.broker(uri)
    with connect(place.uri, name="leash dead") as connection:
        yield connection, place.management


def shown(value: Any) -> str:
    """Text from a publisher, made safe for a terminal."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested too deep to show"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def preview(body: bytes, size: int) -> str:
    """The beginning of a body: as text if it is text, otherwise as bytes."""
    head = body[:size]
    more = " ..." if len(body) > size else ""
    try:
        return shown(head.decode()) + more
    except UnicodeDecodeError as error:
        if error.start >= len(head) - 3 and error.start and more:  # cut within a character
            return shown(head[: error.start].decode()) + more
        return repr(head)[1:] + more
