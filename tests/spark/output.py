"""What a query has really written: only files that Spark's own log lists count."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq


def committed_rows(out: Path) -> tuple[list[bytes], list[bytes]]:
    """The values of all rows, and of those that are not flagged as redelivered."""
    tables = [pq.read_table(file, columns=["value", "redelivered"]) for file in _files(out)]
    rows = [row for table in tables for row in table.to_pylist()]
    return [row["value"] for row in rows], [row["value"] for row in rows if not row["redelivered"]]


def _files(out: Path) -> list[Path]:
    found = set()
    for log in (out / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            found.add(Path(json.loads(line)["path"].removeprefix("file://")))
    return sorted(found)
