"""The broker that a command uses: `--uri`, or LEASH_URI, or the node of `leash broker start`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from leash.errors import ConfigError, LeashError

if TYPE_CHECKING:
    from leash.amqp import Uri
    from leash.management import Management

BrokerUri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        metavar="URI",
        help="The broker, amqp://... (default: LEASH_URI, or the node of `leash broker start`). "
        "Other users of this machine can see an argument: for a password use LEASH_URI.",
        show_default=False,
    ),
]


class StreamPlace(NamedTuple):
    """A broker's stream port; `amqp` is its AMQP URI, if that is known."""

    uri: Uri
    management: Management
    amqp: str | None


class Place(NamedTuple):
    """A broker, and its name for people: `shown` has no password."""

    uri: str
    management: Management
    shown: str


def broker(given: str | None) -> Place:
    """The broker to use, or an error that says what to do."""
    if given is not None:
        return Place(given, _management(given), "--uri's")
    found = known()
    if found is None:
        raise ConfigError("--uri", None, "amqp://..., or set LEASH_URI, or `leash broker start`")
    return found


def known() -> Place | None:
    """The broker that needs no `--uri`, if there is one."""
    from leash.broker import at, default_folder, own_uri

    own = own_uri()
    if own is not None:
        return Place(own, _management(own), "LEASH_URI's")
    node = at(default_folder())
    return Place(node.uri, node.management, "the private node") if node.running else None


def _management(uri: str) -> Management:
    """The private node has its plugin on a port of its own; any other broker is taken to have it where
    LEASH_MANAGEMENT_URL says, or on the usual one.
    """
    from leash.broker import beside
    from leash.management import Management

    private = None if os.environ.get("LEASH_MANAGEMENT_URL") else beside(uri)
    return private or Management.beside(uri)


def stream(given: str | None, port: int | None) -> StreamPlace:
    """The same for streams. `--uri` and LEASH_URI may be rabbitmq-stream://..., or amqp://... and a port."""
    from leash.broker import at, default_folder, own_uri
    from leash.management import Management

    try:
        from leash.streams import parse
    except ImportError as error:
        raise LeashError(str(error)) from None
    text = given if given is not None else own_uri()
    if text is not None:
        place = parse(text, port)
        known_amqp = None if text.startswith("rabbitmq-stream") else text
        return StreamPlace(place, Management.beside(replace(place, scheme="").reveal()), known_amqp)
    node = at(default_folder())
    if not node.running:
        raise ConfigError(
            "--uri", None, "rabbitmq-stream://... or amqp://..., or set LEASH_URI, or `leash broker start`"
        )
    return StreamPlace(node.stream_place(), node.management, node.uri)
