"""The options of `leash ring` as a layout, weights and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

from leash.amqp import connect
from leash.cli import which
from leash.errors import ConfigError
from leash.partitions import layout_store
from leash.partitions.layout import Layout
from leash.partitions.partitions import Partitions
from leash.policies.ring import HashRing


@overload
def layout_of(name: str, uri: str | None, state: Path | None, by: str) -> Layout: ...
@overload
def layout_of(
    name: str, uri: str | None, state: Path | None, by: str, missing_ok: Literal[True]
) -> Layout | None: ...
def layout_of(
    name: str, uri: str | None, state: Path | None, by: str, missing_ok: bool = False
) -> Layout | None:
    if state is not None:
        return stated(name, state, by)
    with connect(which.broker(uri).uri, name="leash ring") as connection:
        return (
            layout_store.recall(connection, name).layout
            if missing_ok
            else layout_store.need(connection, name)
        )


def stated(name: str, state: Path, by: str) -> Layout:
    """The layout of a ring that Leash did not make, from what the broker prints."""
    version = (3, 12) if by.startswith("header:") else None
    ring = HashRing.from_state(state.read_text(), by, version)
    return Layout(name, "direct", ring.bindings, by, ready=True, version=version)


def weights_of(
    before: Layout | None,
    weights: str | None,
    bind: list[str] | None,
    unbind: list[str] | None,
    weigh: list[str] | None,
) -> dict[str, int] | None:
    """All weights after the change; None: no change was asked for."""
    if weights is not None:
        return dict(_pair("weights", item) for item in weights.split(","))
    if not (bind or unbind or weigh):
        return None
    found = dict(before.weights) if before is not None else {}
    for queue in unbind or ():
        if found.pop(queue, None) is None:
            raise ConfigError("unbind", queue, "one of " + ", ".join(found))
    for item in weigh or ():
        queue, weight = _pair("weigh", item)
        if queue not in found:
            raise ConfigError("weigh", queue, "one of " + ", ".join(found))
        found[queue] = weight
    for item in bind or ():
        queue, weight = _pair("bind", item if "=" in item else f"{item}=1")
        if queue in found:
            raise ConfigError("bind", queue, "a queue that is not bound yet; to change its weight, --weigh")
        found[queue] = weight
    return found


def _pair(option: str, text: str) -> tuple[str, int]:
    queue, _, weight = text.strip().rpartition("=")
    if not queue or not weight.isdecimal():
        raise ConfigError(option, text, "NAME=WEIGHT, such as orders.0=1")
    return queue, int(weight)


def partitions_of(
    before: Layout | None,
    name: str,
    weights: dict[str, int],
    by: str = "routing_key",
    layout: str = "slots",
    slots: int = 120,
    kind: str = "classic",
    ordered: bool = True,
) -> Partitions:
    """Partitions like the existing ones, or as the options say for new ones."""
    if before is not None:
        by, layout, kind, ordered = before.by, before.shape, before.kind, before.ordered
        slots = len(before.order) or slots
    shape: Any = layout
    arguments = None if before is None else before.arguments
    return Partitions(
        name, weights, by, layout=shape, slots=slots, kind=kind, ordered=ordered, arguments=arguments
    )


def keys_of(sample: Path | None, by: str) -> list[object] | None:
    return None if sample is None else values_of(by, sample.read_text().splitlines())


def values_of(by: str, lines: list[str]) -> list[object]:
    """Keys as the broker would see them: timestamps are numbers."""
    if by != "property:timestamp":
        return list(lines)
    return [int(line) if line.isdecimal() else line for line in lines]
