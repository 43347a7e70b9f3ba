"""A pipeline's file: read, and checked before Spark starts. Every error names the file and the line."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from leash.errors import ConfigError
from leash.spark.settings import sink_settings, source_settings
from leash.spark.streams.settings import are_for_streams, stream_settings, stream_sink_settings
from leash.spark.toml_lines import Lines

_SECTIONS = ("source", "transform", "sink", "spark")
_EVERY_SINK = ("format", "path", "trigger", "checkpointLocation")
_FILES = ("compression", "maxRecordsPerFile", "retention")
SINKS: dict[str, tuple[str, ...]] = {
    "parquet": _FILES,
    "delta": (*_FILES, "mergeSchema", "overwriteSchema", "optimizeWrite", "txnAppId", "txnVersion"),
    "console": ("numRows", "truncate"),
    "rabbitmq": (),  # the table of options knows them
}
"""The keys of each sink, besides those that all have. Names that begin with `parquet.` are Parquet's own."""
_INTERVAL = re.compile(
    r"(interval\s+)?(\d+\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_MASTER = "local[*,4]"  # plain local[*] fails the query at a task's first failure


@dataclass(frozen=True)
class Pipeline:
    """A pipeline. Its options hold passwords, so they are not printed."""

    source: dict[str, str] = field(repr=False)
    sql: str | None
    format: str
    path: str | None
    trigger: str | None
    sink: dict[str, str] = field(repr=False)
    master: str
    conf: dict[str, str]
    sql_line: str = ""
    """Where the SQL is: `pipeline.toml:12`."""


def load(path: Path) -> Pipeline:
    """Read and check a file."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise _wrong(str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"cannot be read: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise _wrong(f"{path}:{line[1] if line else 1}", f"is not TOML: {error}") from None
    checked = _Checked(path, text, table)
    for section in table:
        if section not in _SECTIONS:
            checked.refuse((section,), f"unknown section; there are {', '.join(_SECTIONS)}")
    source, sink, spark, transform = (
        checked.strings(name) for name in ("source", "sink", "spark", "transform")
    )
    for key in transform:
        if key != "sql":
            checked.refuse(("transform", key), "unknown; [transform] has only sql")
    for key in spark:
        if key != "master" and not key.startswith("spark."):
            checked.refuse(("spark", key), 'must be master, or a setting of Spark\'s, in quotes: "spark..."')
    checked.options("source", lambda: _check_source(source))
    kind, folder, trigger = _sink(checked, sink)
    return Pipeline(
        source,
        transform.get("sql"),
        kind,
        folder,
        trigger,
        sink,
        spark.pop("master", _MASTER),
        spark,
        checked.where(("transform", "sql")),
    )


def _sink(checked: _Checked, sink: dict[str, str]) -> tuple[str, str | None, str | None]:
    """Format, path and trigger, which are taken out of the options; all are checked."""
    kind = sink.get("format", "")
    if kind not in SINKS:
        checked.refuse(("sink", "format"), f"must be one of {', '.join(SINKS)}")
    folder, trigger = sink.get("path"), sink.get("trigger")
    if kind in ("parquet", "delta") and folder is None:
        checked.refuse(("sink", "path"), f"is needed for {kind}")
    if kind in ("console", "rabbitmq") and folder is not None:
        checked.refuse(("sink", "path"), f"{kind} has none")
    if kind != "console" and "checkpointLocation" not in sink:
        checked.refuse(("sink", "checkpointLocation"), "is needed: without it a restart starts over")
    if trigger is not None and trigger != "availableNow" and not _INTERVAL.fullmatch(trigger.strip()):
        checked.refuse(("sink", "trigger"), 'must be "availableNow", or an interval such as "10 seconds"')
    for key in ("format", "path", "trigger"):
        sink.pop(key, None)
    if kind == "rabbitmq":
        checked.options("sink", lambda: _check_sink(sink))
        return kind, folder, trigger
    known = (*_EVERY_SINK, *SINKS[kind])
    for key in sink:
        if key not in known and not (kind != "console" and key.startswith("parquet.")):
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            checked.refuse(("sink", key), f"unknown for {kind}; {hint}")
    return kind, folder, trigger


def _check_source(given: dict[str, str]) -> object:
    return stream_settings(given) if are_for_streams(given) else source_settings(given)


def _check_sink(given: dict[str, str]) -> object:
    return stream_sink_settings(given) if are_for_streams(given) else sink_settings(given)


class _Checked:
    def __init__(self, path: Path, text: str, table: dict[str, Any]) -> None:
        self._path, self._lines, self._table = path, Lines(text), table

    def strings(self, section: str) -> dict[str, str]:
        """Spark's options are text: `true` rather than `True`."""
        found = self._table.get(section, {})
        if not isinstance(found, dict):
            self.refuse((section,), f"must be a section: [{section}]")
        return {key: _text(value) for key, value in found.items()}

    def options(self, section: str, check: Callable[[], object]) -> None:
        try:
            check()
        except ConfigError as error:
            inside = re.findall(r"[^\[\].]+", error.argument)
            raise _wrong(self.where((section, *inside)), str(error)) from None

    def refuse(self, path: tuple[str, ...], why: str) -> NoReturn:
        raise _wrong(self.where(path), f"{'.'.join(path)}: {why}")

    def where(self, path: tuple[str, ...]) -> str:
        return f"{self._path}:{self._lines.of(path)}"


def _wrong(where: str, reason: str) -> ConfigError:
    """An error that begins with the place, as compilers do it."""
    error = ConfigError(where, None, reason)
    error.args = (f"{where}: {reason}",)
    return error


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
