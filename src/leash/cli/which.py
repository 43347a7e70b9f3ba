"""The broker that a command uses: `--uri`, or LEASH_URI, or the node of `leash broker start`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from leash.errors import ConfigError

if TYPE_CHECKING:
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


class Place(NamedTuple):
    """A broker, and its name for people: `shown` has no password."""

    uri: str
    management: Management
    shown: str


def broker(given: str | None) -> Place:
    """The broker to use, or an error that says what to do."""
    from leash.management import Management

    if given is not None:
        return Place(given, Management.beside(given), "--uri's")
    found = known()
    if found is None:
        raise ConfigError("--uri", None, "amqp://..., or set LEASH_URI, or `leash broker start`")
    return found


def known() -> Place | None:
    """The broker that needs no `--uri`, if there is one."""
    from leash.broker import at, default_folder, own_uri
    from leash.management import Management

    own = own_uri()
    if own is not None:
        return Place(own, Management.beside(own), "LEASH_URI's")
    node = at(default_folder())
    return Place(node.uri, node.management, "the private node") if node.running else None
