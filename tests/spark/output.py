"""What a query has really written: only files that Spark's own log lists count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def committed_rows(out: Path) -> tuple[list[bytes], list[bytes]]:
    """The values of all rows, and of those that are not flagged as redelivered."""
    tables = [pq.read_table(file, columns=["value", "redelivered"]) for file in _files(out)]
    rows = [row for table in tables for row in table.to_pylist()]
    return [row["value"] for row in rows], [row["value"] for row in rows if not row["redelivered"]]


def batches(out: Path) -> list[list[dict[str, Any]]]:
    """The rows of each batch, split by split."""
    logs = sorted((int(log.name), log) for log in (out / "_spark_metadata").glob("[0-9]*"))
    return [[row for file in _listed(log) for row in pq.read_table(file).to_pylist()] for _, log in logs]


def _files(out: Path) -> list[Path]:
    logs = (out / "_spark_metadata").glob("[0-9]*")
    return sorted({file for log in logs for file in _listed(log)})


def _listed(log: Path) -> list[Path]:
    return [
        Path(json.loads(line)["path"].removeprefix("file://")) for line in log.read_text().splitlines()[1:]
    ]
