"""`leash run pipeline.toml`: a Spark pipeline from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline, in TOML; see docs/spark.md.", dir_okay=False)],
) -> None:
    """Run a Spark pipeline from a file: queues, an optional SQL transform, a sink."""
    from leash.cli.output import need

    need("pyspark", "spark", "leash run")
    from leash.spark import pipeline

    pipeline.run(file)
