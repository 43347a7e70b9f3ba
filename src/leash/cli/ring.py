"""`leash ring`: shows partitions, where keys go and what a change would move, and makes the change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from leash.cli import which
from leash.cli.output import Json, say
from leash.errors import ConfigError

ring_app = typer.Typer(
    help="Partitions by consistent hashing: where keys go, what a change would move, and safe resizing.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The partitions' name: that of their exchange.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="Read the ring from this file instead of a broker, as `rabbitmq-diagnostics "
        "consistent_hash_exchange_ring_state` prints it.",
        exists=True,
        dir_okay=False,
    ),
]
By = Annotated[str, typer.Option("--by", help="routing_key, header:NAME or property:NAME.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="All queues and weights: orders.0=1,orders.1=2.")
]
Bind = Annotated[list[str] | None, typer.Option("--bind", help="Add a queue: NAME or NAME=WEIGHT.")]
Unbind = Annotated[list[str] | None, typer.Option("--unbind", help="Remove a queue.")]
Weigh = Annotated[list[str] | None, typer.Option("--weigh", help="Change a weight: NAME=WEIGHT.")]
LayoutOption = Annotated[str, typer.Option("--layout", help="For new partitions: slots or direct.")]
Slots = Annotated[int, typer.Option("--slots", help="For new partitions: how many slots.")]
Kind = Annotated[str, typer.Option("--kind", help="For new partitions: classic or quorum queues.")]
Ordered = Annotated[
    bool, typer.Option("--ordered/--unordered", help="For new partitions: whether keys must stay in order.")
]
Sample = Annotated[
    Path | None,
    typer.Option("--sample", help="A file with one key per line: count its messages, too.", exists=True),
]


@ring_app.command()
def show(
    name: Name,
    uri: which.BrokerUri = None,
    state: State = None,
    by: By = "routing_key",
    json: Json = False,
) -> None:
    """Show the queues with weights, slots, depth, and share of all keys."""
    from leash.cli import ring_json as told
    from leash.cli import ring_options as options
    from leash.cli import ring_tables as tables

    if state is not None:
        stated = options.stated(name, state, by)
        say(told.layout(stated, {})) if json else tables.layout(stated, {})
        return
    from leash.amqp import connect, topology
    from leash.partitions import layout_store

    with connect(which.broker(uri).uri, name="leash ring") as connection:
        known = layout_store.recall(connection, name)
        found = known.layout or layout_store.need(connection, name)
        with connection.channel() as channel:
            states = {queue: topology.state(channel, queue) for queue in found.all_queues}
    if json:
        say(told.layout(found, states, known.awaited))
    else:
        tables.layout(found, states, known.awaited)


@ring_app.command()
def route(
    name: Name,
    keys: Annotated[list[str], typer.Argument(help="Keys; `-` reads them from standard input.")],
    uri: which.BrokerUri = None,
    state: State = None,
    by: By = "routing_key",
    json: Json = False,
) -> None:
    """Show where each key goes, without publishing anything."""
    from leash.cli import ring_options as options

    found = options.layout_of(name, uri, state, by)
    wanted = [line.rstrip("\n") for line in sys.stdin] if keys == ["-"] else keys
    queues = found.route_many(options.values_of(found.by, wanted))
    if json:
        say([{"key": key, "queue": str(queue)} for key, queue in zip(wanted, queues, strict=True)])
        return
    for key, queue in zip(wanted, queues, strict=True):
        typer.echo(f"{key}\t{queue}")


@ring_app.command()
def plan(
    name: Name,
    uri: which.BrokerUri = None,
    state: State = None,
    by: By = "routing_key",
    weights: Weights = None,
    bind: Bind = None,
    unbind: Unbind = None,
    weigh: Weigh = None,
    restart: Annotated[bool, typer.Option("--restart", help="After a full stop of the broker.")] = False,
    upgrade: Annotated[
        str | None, typer.Option("--upgrade", help="After an upgrade of the broker, to 3.13 for example.")
    ] = None,
    sample: Sample = None,
    layout: LayoutOption = "slots",
    slots: Slots = 120,
    kind: Kind = "classic",
    ordered: Ordered = True,
    json: Json = False,
) -> None:
    """Show what a change would move. Changes nothing."""
    from leash.cli import ring_json as told
    from leash.cli import ring_options as options
    from leash.cli import ring_tables as tables
    from leash.partitions.plan import compare, notes
    from leash.policies.ring.hash_input import check_version

    before = options.layout_of(name, uri, state, by, missing_ok=True)
    all_weights = options.weights_of(before, weights, bind, unbind, weigh)
    if restart or upgrade:
        if before is None or all_weights is not None:
            raise ConfigError("restart", name, "existing partitions, and no other change")
        after = before.upgraded(check_version(upgrade)) if upgrade else before.restarted()
        keys = options.keys_of(sample, before.by)
        if json:
            say(told.change(before, after, keys) | {"notes": list(notes(after))})
            return
        tables.change(before, after, keys)
        tables.tell(notes(after))
        return
    if all_weights is None:
        raise ConfigError(
            "weights", None, "what to change: --weights, --bind, --unbind, --weigh, --restart ..."
        )
    if before is None:
        partitions = options.partitions_of(None, name, all_weights, by, layout, slots, kind, ordered)
        planned = partitions.plan(which.broker(uri).uri)
    else:
        by = before.by
        version = before.version or (3, 8)
        planned = compare(before, options.partitions_of(before, name, all_weights).asked_on(version))
    keys = options.keys_of(sample, by)
    if json:
        say(told.difference(planned, keys))
    else:
        tables.difference(planned, keys)


@ring_app.command()
def apply(
    name: Name,
    uri: which.BrokerUri = None,
    by: By = "routing_key",
    weights: Weights = None,
    bind: Bind = None,
    unbind: Unbind = None,
    weigh: Weigh = None,
    layout: LayoutOption = "slots",
    slots: Slots = 120,
    kind: Kind = "classic",
    ordered: Ordered = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    delete_retired: Annotated[
        bool, typer.Option("--delete-retired", help="Also delete retired queues that are empty and unused.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a change; without one, finish an interrupted change."""
    from leash.cli import ring_json as told
    from leash.cli import ring_options as options
    from leash.cli import ring_tables as tables

    if json and not yes:
        raise ConfigError("--json", None, "together with --yes: a program cannot be asked")
    place = which.broker(uri).uri
    before = options.layout_of(name, place, None, by, missing_ok=True)
    all_weights = options.weights_of(before, weights, bind, unbind, weigh)
    if all_weights is None and before is not None:
        all_weights = dict(before.weights)
    if all_weights is None:
        raise ConfigError("weights", None, "queues and weights for new partitions: orders.0=1,orders.1=2")
    partitions = options.partitions_of(before, name, all_weights, by, layout, slots, kind, ordered)
    wanted = partitions.plan(place)
    if json:
        if not wanted.nothing:
            partitions.apply(place, wanted)
        deleted = list(partitions.delete_retired(place)) if delete_retired else []
        say(told.difference(wanted, None) | {"deleted": deleted})
        return
    tables.difference(wanted, None)
    if not wanted.nothing:
        if not yes and not typer.confirm("Apply?"):
            raise typer.Exit(1)
        partitions.apply(place, wanted, reached=tables.reached)
        typer.echo("done")
    if delete_retired:
        for queue in partitions.delete_retired(place):
            typer.echo(f"deleted queue {queue!r}")


@ring_app.command()
def check(
    name: Name,
    uri: which.BrokerUri = None,
    state: State = None,
    fix: Annotated[bool, typer.Option("--fix", help="Store the broker's order as the new one.")] = False,
    json: Json = False,
) -> None:
    """Check whether a restart has shuffled the ring, with one short-lived probe per slot; exit status 1 if
    so.
    """
    from leash.cli import ring_json as told
    from leash.cli import ring_tables as tables
    from leash.partitions import check as compare

    text = None if state is None else state.read_text()
    known, found = compare(which.broker(uri).uri, name, state=text, fix=fix)
    if json:
        say(told.change(known, found, None) | {"in_order": known == found, "stored": fix})
        raise typer.Exit(0 if known == found or fix else 1)
    if known == found:
        typer.echo("the ring is in the stored order")
        return
    typer.echo("the broker's ring is not in the stored order: a restart has shuffled it")
    tables.change(known, found, None)
    if fix:
        typer.echo("stored: keys are predicted as the broker routes them now")
        return
    typer.echo("with --fix Leash stores the new order, and nothing moves")
    raise typer.Exit(1)


@ring_app.command()
def remind(name: Name, uri: which.BrokerUri = None) -> None:
    """Publish a lost marker again, if a purge or an expiry removed it and a gate waits for it."""
    from leash.partitions import remind as again

    for number, queue in again(which.broker(uri).uri, name):
        typer.echo(f"move {number}: marker for queue {queue!r}")


@ring_app.command()
def skew(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A file with one key per line.", exists=True, dir_okay=False)],
    uri: which.BrokerUri = None,
    state: State = None,
    by: By = "routing_key",
    top: Annotated[int, typer.Option("--top", help="How many hot keys to name.", min=0)] = 10,
    json: Json = False,
) -> None:
    """Show how evenly a sample of keys falls on the queues, and which keys are hot."""
    from leash.cli import ring_json as told
    from leash.cli import ring_options as options
    from leash.cli import ring_tables as tables

    found = options.layout_of(name, uri, state, by)
    keys = options.keys_of(file, found.by) or []
    if json:
        say(told.skew(found, keys, top))
    else:
        tables.skew(found, keys, top)
