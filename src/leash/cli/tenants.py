"""`leash tenants`: make them, adopt an existing queue, see who is noisy, isolate and release a tenant."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leash.cli import which
from leash.cli.output import Json, say
from leash.errors import LeashError

tenants_app = typer.Typer(
    help="One flow of messages, served fairly by tenant: see docs/tenants.md.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The tenants' exchange, like jobs.", show_default=False)
]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant, like acme.", show_default=False)]
OldQueue = Annotated[str, typer.Argument(metavar="QUEUE", help="The existing queue.", show_default=False)]


@tenants_app.command()
def declare(
    name: Name,
    by: Annotated[
        str, typer.Option(help="Where the tenant is named: header:NAME or routing_key.")
    ] = "header:tenant",
    lanes: Annotated[int, typer.Option(help="How many lanes tenants are hashed to.")] = 64,
    own: Annotated[int, typer.Option(help="How many tenants can be isolated at a time.")] = 8,
    kind: Annotated[str, typer.Option(help="classic or quorum queues.")] = "classic",
    uri: which.BrokerUri = None,
) -> None:
    """Declare the exchange and the lanes. If they exist, they stay as they are."""
    from leash.fleet import Tenants

    made = Tenants(name, by, lanes, own=own, kind=kind)
    made.declare(which.broker(uri).uri)
    typer.echo(f"Publish to the exchange {name}: by {by}, {lanes} lanes, {own} for isolated tenants.")


@tenants_app.command()
def show(
    name: Name,
    tenants: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TENANT]...", help="Show the lanes of these.", show_default=False),
    ] = None,
    uri: which.BrokerUri = None,
    json: Json = False,
) -> None:
    """Show the lanes with messages, who is isolated, what is adopted, and in which lane a tenant is."""
    from leash.amqp import connect, topology
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri).uri
    state = read(place, name)
    with connect(place, name="leash tenants") as connection, connection.channel() as channel:
        depths = {queue: topology.state(channel, queue).ready for queue in state.tenants.queues}
    waiting = {queue: ready for queue, ready in depths.items() if ready}
    routes = {tenant: state.lane(tenant) for tenant in tenants or ()}
    made = {
        "name": name,
        "by": state.tenants.by,
        "lanes": len(state.tenants.lanes),
        "own": len(state.tenants.own),
        "kind": state.tenants.kind,
    }
    if json:
        say({**made, "waiting": waiting, "isolated": state.pins, "adopted": state.adopted, "routes": routes})
        return
    typer.echo(
        f"{name}: by {made['by']}, {made['lanes']} {made['kind']} lanes, {made['own']} for isolated tenants"
    )
    isolated = {f"isolated  {tenant}": lane for tenant, lane in state.pins.items()}
    adopted = {f"adopted   {queue}": "its messages are moved to the lanes" for queue in state.adopted}
    busy = {f"waiting   {queue}": str(ready) for queue, ready in waiting.items()}
    _table(isolated | adopted | busy | routes)


@tenants_app.command()
def adopt(name: Name, queue: OldQueue, uri: which.BrokerUri = None) -> None:
    """Move an existing queue's messages to the lanes, now and from now on; publishers need not stop.

    Bindings of the queue are moved to the exchange (this asks the management plugin, at
    LEASH_MANAGEMENT_URL, or port 15672). The tenants' consumers move whatever still comes to the queue.
    """
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri)
    moved, stay, trouble = read(place.uri, name).tenants.adopt(place.uri, queue, place.management)
    typer.echo(f"Consumers of {name} move what comes to {queue}.")
    for source, key, _ in moved:
        typer.echo(f"Exchange {source}, key {key!r}: bound to {name} instead.")
    for source, key, _ in stay:
        typer.echo(
            f"Exchange {source}, key {key!r}: still bound to {queue}, since it routes by its bindings."
        )
    if trouble:
        typer.echo(f"Bindings were left as they are: {trouble}", err=True)


@tenants_app.command()
def unadopt(name: Name, queue: OldQueue, uri: which.BrokerUri = None) -> None:
    """Move no more messages from a queue that was adopted. The queue stays."""
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri).uri
    read(place, name).tenants.unadopt(place, queue)
    typer.echo(f"Consumers of {name} no longer take messages from {queue}.")


@tenants_app.command()
def isolate(name: Name, tenant: Tenant, uri: which.BrokerUri = None) -> None:
    """Give a tenant a lane of its own, and move there what waits in the lane that it shared."""
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri).uri
    lane, moved = read(place, name).tenants.isolate(place, tenant)
    typer.echo(f"{tenant} goes to {lane}; {moved} messages of its old lane were sorted.")


@tenants_app.command()
def release(name: Name, tenant: Tenant, uri: which.BrokerUri = None) -> None:
    """Undo isolate: new messages of the tenant go to a shared lane again."""
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri).uri
    lane = read(place, name).tenants.release(place, tenant)
    typer.echo(f"{tenant} shares a lane again; what waits in {lane} is still handled.")


@tenants_app.command()
def top(
    name: Name,
    seconds: Annotated[float, typer.Option(help="How long to listen to the consumers.", min=1.0)] = 3.0,
    most: Annotated[int, typer.Option("--most", help="How many tenants to show.", min=1)] = 10,
    uri: which.BrokerUri = None,
    json: Json = False,
) -> None:
    """Show who is noisy: the tenants with most of the handlers' time or messages, over all processes.

    Consumers report once a second; older work counts half after 30 seconds.
    """
    from leash.page.noisy_tenants import listen

    found = listen(which.broker(uri).uri, name, seconds)
    if not found.processes:
        raise LeashError(
            f"no consumer of tenants {name!r} reported within {seconds:g} s: "
            "they must run, and be allowed to write to the exchange leash.stats"
        )
    rows = found.rows[:most]
    if json:
        told = [{"tenant": t, "lane": lane, "time": time, "messages": n} for t, lane, time, n in rows]
        say({"processes": found.processes, "top": told})
        return
    typer.echo(f"{found.processes} {'process' if found.processes == 1 else 'processes'}")
    width = max([6, *[len(each.tenant) for each in rows]])
    typer.echo(f"{'tenant':<{width}}   time  messages  lane")
    for each in rows:
        shown = each.tenant or "(none)"
        typer.echo(f"{shown:<{width}}  {each.time:>4.0%}  {each.messages:>8.0%}  {each.lane}")


@tenants_app.command()
def delete(
    name: Name,
    queues: Annotated[
        bool, typer.Option("--queues", help="Delete the lanes and their messages, too.")
    ] = False,
    uri: which.BrokerUri = None,
) -> None:
    """Delete the exchanges and what is stored about the tenants. After that, publishers get errors."""
    from leash.fleet.tenants.tenants import read

    place = which.broker(uri).uri
    read(place, name).tenants.delete(place, queues=queues)
    typer.echo(f"Tenants {name} are deleted{', with their lanes' if queues else '; their lanes stay'}.")


def _table(rows: dict[str, Any]) -> None:
    width = max([len(each) for each in rows], default=0)
    for left, right in rows.items():
        typer.echo(f"{left:<{width}}  {right}")
