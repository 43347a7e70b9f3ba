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
    """Read ten queues into Parquet through Spark, with fair shares and a rate limit: about a minute."""
    from leash.lab import demo as show

    show.run(folder)
