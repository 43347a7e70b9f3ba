"""Options of streams as typed values: what a source, a batch read or a sink was told, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leash.errors import ConfigError
from leash.spark import options
from leash.spark.queue_options import parse_queues
from leash.spark.settings import Broker, Limits, broker_of, check_limits

_WHICH = ("stream", "streams", "superstream")

Offsets = str | dict[str, int | str]
"""earliest, latest, or one of these or an offset for each of some streams."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which broker, and how to get to its streams."""

    broker: Broker
    stream_port: int | None
    load_balancer: bool


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Limits):
    """A source of streams, or a batch read of some."""

    place: Place
    super_stream: str | None
    starting_offsets: Offsets | None
    starting_timestamp: int | None
    ending_offsets: Offsets | None
    filter_values: tuple[str, ...]
    match_unfiltered: bool
    fail_on_data_loss: bool
    include_properties: bool
    include_headers: bool
    include_annotations: bool

    @property
    def option(self) -> str:
        """The one that names what is read."""
        if self.super_stream is not None:
            return "superStream"
        return "stream" if len(self.queues) == 1 else "streams"


@dataclass(frozen=True, kw_only=True)
class StreamSinkSettings:
    place: Place
    stream: str | None
    super_stream: str | None
    confirm_timeout: int


def are_for_streams(given: Mapping[str, str]) -> bool:
    """True if options name a stream, and not a queue."""
    return any(name.lower() in _WHICH for name in given)


def stream_settings(given: Mapping[str, str]) -> StreamSettings:
    """Of `readStream`."""
    return _reading(options.parse(options.STREAMS, given))


def stream_read_settings(given: Mapping[str, str]) -> StreamSettings:
    """Of `read`, which has no triggers and so no limits for them."""
    values = options.parse(options.STREAM_READ, given)
    without = ("max_records_per_trigger", "max_bytes_per_trigger", "min_records_per_trigger")
    values |= dict.fromkeys((*without, "max_rate_per_second", "burst", "target_delay"))
    return _reading(values | {"max_trigger_delay": 0})


def stream_sink_settings(given: Mapping[str, str]) -> StreamSinkSettings:
    values = options.parse(options.STREAM_SINK, given)
    if (values["stream"] is None) == (values["super_stream"] is None):
        raise ConfigError("stream", values["stream"], "set exactly one of stream and superStream")
    return StreamSinkSettings(place=_place(values), **values)


def _reading(values: dict[str, Any]) -> StreamSettings:
    one, several, whole = values.pop("stream"), values.pop("streams"), values["super_stream"]
    if whole is None:
        values["queues"] = parse_queues(one, several, "stream")
    elif one is None and several is None:
        values["queues"] = ()
    else:
        raise ConfigError("superStream", whole, "set superStream, or stream, or streams")
    if values["starting_timestamp"] is not None and values["starting_offsets"] is not None:
        raise ConfigError("startingTimestamp", values["starting_timestamp"], "not beside startingOffsets")
    if values["match_unfiltered"] and not values["filter_values"]:
        raise ConfigError("matchUnfiltered", True, "only beside filterValues")
    values.setdefault("ending_offsets", None)
    ending = values["ending_offsets"]
    if ending == "earliest" or (isinstance(ending, dict) and "earliest" in ending.values()):
        raise ConfigError("endingOffsets", ending, "latest, or an offset per stream: nothing ends there")
    names = [spec.name for spec in values["queues"]]
    for option, told in (("startingOffsets", values["starting_offsets"]), ("endingOffsets", ending)):
        if names:
            check_known(option, told, names)
    check_limits(values)
    return StreamSettings(place=_place(values), **values)


def check_known(option: str, told: Offsets | None, names: list[str]) -> None:
    """ConfigError if offsets are given for streams that are not read."""
    unknown = [name for name in told if name not in names] if isinstance(told, dict) else []
    if unknown:
        raise ConfigError(option, unknown[0], f"is not read here; there are {', '.join(names)}")


def _place(values: dict[str, Any]) -> Place:
    place = Place(
        broker=broker_of(values),
        stream_port=values.pop("stream_port"),
        load_balancer=values.pop("load_balancer"),
    )
    if place.stream_port is not None and place.broker.url.startswith("rabbitmq-stream"):
        raise ConfigError("streamPort", place.stream_port, "only with an amqp:// URL: this one has its port")
    return place
