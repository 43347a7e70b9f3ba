"""`leash budget`: show budgets, change their numbers while they are in use, delete them."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leash.cli import output, which
from leash.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leash.amqp import Connection
    from leash.fleet.budgets.state_at_broker import Card

budget_app = typer.Typer(
    help="Limits over all processes that name them: see docs/budgets.md.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The budget, like sms.", show_default=False)]


@budget_app.command("list")
def list_(uri: which.BrokerUri = None, as_json: output.Json = False) -> None:
    """List all budgets of the virtual host, with their numbers.

    Their names come from the management plugin (at LEASH_MANAGEMENT_URL, or port 15672).
    """
    from leash.fleet.budgets.settings import spoken

    with _connected(uri) as (connection, place):
        names = _names(place, connection.uri.vhost)
        cards = {name: _card(connection, name) for name in names}
    if as_json:
        output.say([{"name": name, **_plain(card.numbers)} for name, card in cards.items()])
        return
    if not cards:
        typer.echo("There are no budgets.")
    width = max([len(name) for name in cards], default=0)
    for name, card in cards.items():
        typer.echo(f"{name:<{width}}  {spoken(card.numbers)}")


@budget_app.command()
def show(name: Name, uri: which.BrokerUri = None, as_json: output.Json = False) -> None:
    """Show one budget: its numbers, its tokens, and how many of them are ready now."""
    from leash.fleet.budgets.lifecycle import terms_of
    from leash.fleet.budgets.settings import spoken
    from leash.fleet.budgets.state_at_broker import cooling_queue, ready, wheel_queue

    with _connected(uri) as (connection, _):
        card = _card(connection, name)
        here = ready(connection, wheel_queue(name, card.generation))
        cooling = ready(connection, cooling_queue(name, card.generation)) if card.form == "cooling" else None
    shape = terms_of(name, card.numbers).shape
    if as_json:
        told: dict[str, Any] = {"name": name, "numbers": _plain(card.numbers), "in_code": _plain(card.asked)}
        told |= {"tokens": len(shape.worths), "worth": shape.worth, "ready": here, "cooling": cooling}
        output.say(told | {"period": None if card.form == "held" else shape.period / 1000})
        return
    typer.echo(f"numbers  {spoken(card.numbers)}")
    if card.asked != card.numbers:
        typer.echo(f"in code  {spoken(card.asked)}")
    tokens = len(shape.worths)
    if card.form == "held":
        typer.echo(f"tokens   {tokens}, held during the work")
    else:
        worth = "1 permit" if shape.worth == 1 else f"up to {shape.worth} permits"
        typer.echo(f"tokens   {tokens}, worth {worth}, each used once in {shape.period / 1000:g} s")
    typer.echo(f"ready    {'the wheel is missing' if here is None else here}")
    if cooling is not None:
        typer.echo(f"waiting  {cooling}, until their time is over")


@budget_app.command("set")
def set_(
    name: Name,
    rate: Annotated[float | None, typer.Option(help="Permits per second.", show_default=False)] = None,
    burst: Annotated[int | None, typer.Option(help="Permits at once.", show_default=False)] = None,
    at_once: Annotated[
        int | None, typer.Option("--at-once", help="Messages worked on at the same time.", show_default=False)
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for permits that are in use.")] = 30.0,
    uri: which.BrokerUri = None,
) -> None:
    """Change the numbers of a budget in use. Processes go on with the new ones after a pause of burst / rate.

    Code may still name the old numbers.
    """
    from leash.fleet.budgets import lifecycle
    from leash.fleet.budgets.settings import Terms, spoken

    if rate is None and burst is None and at_once is None:
        raise ConfigError("--rate", None, "at least one of --rate, --burst and --at-once")
    with _connected(uri) as (connection, _):
        card = _card(connection, name)
        if (at_once is not None) != (card.form == "held") or (at_once is not None and (rate or burst)):
            kind = "has at_once, and no rate" if card.form == "held" else "has a rate, and no at_once"
            raise BudgetError(f"budget {name!r} {kind}: delete it to make it something else")
        if at_once is not None:
            card = lifecycle.resize(connection, name, Terms(name, at_once=at_once).size, wait)
        else:
            old = card.numbers
            terms = Terms(
                name,
                rate=old["rate"] if rate is None else rate,
                burst=old["burst"] if burst is None else burst,
                lease=old["lease"],
            )
            card = lifecycle.renew(connection, name, card, terms.numbers)
    typer.echo(f"{name}: {spoken(card.numbers)}")


@budget_app.command()
def delete(name: Name, uri: which.BrokerUri = None) -> None:
    """Delete a budget and its queues. Its users create it again, with the numbers in their code."""
    from leash.fleet.budgets import lifecycle

    with _connected(uri) as (connection, _):
        if not lifecycle.delete(connection, name):
            raise _none(name)
    typer.echo(f"Budget {name} is deleted.")


@contextmanager
def _connected(uri: str | None) -> Iterator[tuple[Connection, which.Place]]:
    from leash.amqp import connect

    place = which.broker(uri)
    with connect(place.uri, name="leash budget") as connection:
        yield connection, place


def _names(place: which.Place, vhost: str) -> list[str]:
    from urllib.parse import quote

    from leash.fleet.budgets.state_at_broker import card_queue

    prefix = card_queue("")
    queues = place.management.ask("GET", f"/api/queues/{quote(vhost, safe='')}?columns=name")
    found = [str(queue["name"]).removeprefix(prefix) for queue in queues if queue["name"].startswith(prefix)]
    return sorted(name for name in found if ":" not in name)


def _card(connection: Connection, name: str) -> Card:
    from leash.fleet.budgets import lifecycle

    card = lifecycle.find(connection, name)
    if card is None:
        raise _none(name)
    return card


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    """With the rate as a number: it is kept as a fraction."""
    return {name: float(Fraction(each)) if name == "rate" else each for name, each in numbers.items()}


def _none(name: str) -> BudgetError:
    return BudgetError(f"there is no budget {name!r} here: `leash budget list` shows all")
