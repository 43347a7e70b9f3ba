"""The `leash` command. Each command imports what it needs when called, so that `leash --help` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import leash
from leash.cli.broker import broker_app
from leash.cli.budget import budget_app
from leash.cli.consume import consume
from leash.cli.dead import dead_app
from leash.cli.demo import demo
from leash.cli.lab import lab_app
from leash.cli.page import page
from leash.cli.plan import plan
from leash.cli.ring import ring_app
from leash.cli.run import run
from leash.cli.stream import stream_app
from leash.cli.tenants import tenants_app
from leash.errors import LeashError, NotDrained

app = typer.Typer(
    name="leash",
    help="Fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(consume)
app.command()(run)
app.command()(page)
app.add_typer(ring_app, name="ring")
app.add_typer(dead_app, name="dead")
app.add_typer(budget_app, name="budget")
app.add_typer(tenants_app, name="tenants")
app.add_typer(stream_app, name="stream")
app.add_typer(lab_app, name="lab")
app.command()(plan)
app.command()(demo)
app.add_typer(broker_app, name="broker")


def main() -> None:
    """Run the `leash` command: a LeashError is one line, not a traceback."""
    try:
        app()
    except LeashError as error:
        typer.echo(f"leash: {error}", err=True)
        sys.exit(3 if isinstance(error, NotDrained) else 1)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines."""
    if version:
        typer.echo(f"leash {leash.__version__}")
        raise typer.Exit
