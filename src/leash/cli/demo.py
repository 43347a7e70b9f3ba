"""`leash demo`: shows Leash at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where to write the result.", file_okay=False)
    ] = Path("leash-demo"),
) -> None:
    """The same load without Leash and with it, through Spark to Parquet and a stream: about a minute."""
    from leash.cli.output import need

    need("pyspark", "spark", "leash demo")
    need("plotly", "lab", "leash demo")
    from leash.lab import demo as show

    show.run(folder)
