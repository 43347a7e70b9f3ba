"""The command line. Each group imports what it needs when it is called, so that `leash --help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import leash
from leash.consumer import cli as consumer_cli
from leash.errors import LeashError
from leash.lab import cli as lab_cli
from leash.lab import plan_cli
from leash.partitions import cli as partitions_cli

app = typer.Typer(
    name="leash",
    help="Fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
broker_app = typer.Typer(
    help="A private RabbitMQ node on this machine, for trying things out. "
    "With LEASH_URI set, everything uses that broker instead.",
    no_args_is_help=True,
)
app.command()(consumer_cli.consume)
app.add_typer(consumer_cli.dead_app, name="dead")
app.add_typer(partitions_cli.ring_app, name="ring")
app.add_typer(lab_cli.lab_app, name="lab")
app.command()(plan_cli.plan)
app.add_typer(broker_app, name="broker")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", help="Where the node keeps its files (default: your state folder).", file_okay=False
    ),
]


def main() -> None:
    """The `leash` command: an error of ours is one line, not a traceback."""
    try:
        app()
    except LeashError as error:
        typer.echo(f"leash: {error}", err=True)
        sys.exit(1)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines."""
    if version:
        typer.echo(f"leash {leash.__version__}")
        raise typer.Exit


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the result goes.", file_okay=False)] = Path(
        "leash-demo"
    ),
) -> None:
    """Ten priority queues to Parquet through Spark, with fair shares and a rate limit: about a minute."""
    from leash import demo as show

    show.run(folder)


@app.command(name="run")
def run_pipeline(
    file: Annotated[Path, typer.Argument(help="The pipeline, in TOML; see docs/spark.md.", dir_okay=False)],
) -> None:
    """Run a Spark pipeline from a file: queues, an optional SQL transform, a sink."""
    from leash.spark import pipeline

    pipeline.run(file)


@broker_app.command()
def start(folder: Folder = None) -> None:
    """Start the node in the background, or find the one that runs; returns when it is ready."""
    from leash import broker

    if _own_is_used():
        return
    node = broker.Broker(folder or broker.default_folder())
    found = node.running

    def progress(seconds: float) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\rStarting RabbitMQ ... {seconds:3.0f} s", err=True, nl=False)

    if not sys.stderr.isatty() and not found:
        typer.echo("Starting RabbitMQ (about 10 s) ...", err=True)
    node.start(progress)
    if sys.stderr.isatty() and not found:
        typer.echo("\r", err=True, nl=False)
    typer.echo(f"{'Found running' if found else 'Ready'}: {node.shown()}")
    typer.echo(
        f"Management: http://127.0.0.1:{node.port('management')}  (user and password: `leash broker uri`)"
    )


@broker_app.command()
def status(folder: Folder = None) -> None:
    """Say whether it runs, and where; exit status 1 if it does not."""
    from leash import broker
    from leash.amqp import connect

    if _own_is_used():
        connect(broker.own_uri() or "").close()
        typer.echo("It answers.")
        return
    node = broker.Broker(folder or broker.default_folder())
    if not node.running:
        typer.echo("Not running.")
        raise typer.Exit(1)
    with connect(node.uri) as connection:
        typer.echo(f"Running: {node.shown()}, RabbitMQ {connection.server['version']}")
    for name in ("management", "prometheus", "stream"):
        typer.echo(f"  {name}: 127.0.0.1:{node.port(name)}")
    typer.echo(f"  files: {node.folder}")


@broker_app.command()
def stop(
    folder: Folder = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its data too.")] = False,
) -> None:
    """Stop it and every process of it."""
    from leash import broker

    if _own_is_used():
        return
    node = broker.Broker(folder or broker.default_folder())
    ran = node.running
    node.stop(purge=purge)
    typer.echo(("Stopped" if ran else "Was not running") + (", data deleted." if purge else "."))


@broker_app.command()
def uri(folder: Folder = None) -> None:
    """Print its URI with the password, for other programs: export LEASH_URI=$(leash broker uri)"""
    from leash import broker

    own = broker.own_uri()
    typer.echo(own or broker.Broker(folder or broker.default_folder()).uri)


def _own_is_used() -> bool:
    """Say that LEASH_URI is set, where it is."""
    from leash import broker
    from leash.amqp.uri import parse

    own = broker.own_uri()
    if own:
        typer.echo(f"LEASH_URI is set, so this broker is used: {parse(own)}")
    return own is not None


if __name__ == "__main__":
    main()
