"""A consumer's streams: what users say about each, and the lane that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Literal, get_args

from leash.consumer.settings import OnExhausted, Queue, Settings, flag, one_of, text
from leash.errors import ConfigError, LeashError
from leash.fleet import Budget
from leash.policies.exact_numbers import Number

Begin = str | int | datetime | timedelta
"""As `leash.streams.Start`, which needs pyarrow."""

Shed = Literal["observe", "shrink", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQueue(Queue):
    """The lane of a stream: `name` is the stream's, `reference` the one that its offset is stored under."""

    reference: str
    start: Begin = "first"
    single_active: bool = False
    super_stream: str = ""
    filters: tuple[str, ...] = ()
    unfiltered: bool = False
    fail_on_data_loss: bool = False

    @property
    def in_place(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream to consume, and its share of the workers. Leash does not declare it.

    Arguments:
        stream: The stream's name.
        quantum: Its share: messages (or units of cost) per round. Default: 1.
        name: The name under which its offset is stored, in the stream itself: the next process of that name
            continues there. Default: the consumer's `name`.
        start: Where to begin if nothing is stored: "first" (the default), "last", "next", an offset, a time,
            or an interval back from now such as "6h".
        single_active: Of all processes with this name, only one consumes it at a time, in order, and another
            one continues when that ends. Needs RabbitMQ 3.11 or later. Default: False, every process gets
            everything.
        ordered: One message at a time and in order. Default: False; always with `single_active`.
        tier: 0 (the default) is served first; a higher tier only when no lower one has work to serve.
        rate: Messages per second that go to workers, in this process only. Default: None, no limit.
        burst: How many messages may go to workers at once after a pause. Default: 1. Needs a rate.
        budget: A `Budget`, shared with every process that names it. Each message needs a permit from it.
            Default: None.
        window: How many messages may be in the buffer or in work. "auto" (the default) adapts it; a number
            fixes it. In order it is always fixed, to 16 by default.
        shed: What to do about a standing delay in the buffer: "observe" counts it, "shrink" (the default)
            makes the window smaller, "drop" skips messages past their deadline.
        target: Seconds in the buffer above which a wait counts as a delay. Default: 0.005.
        interval: Seconds after which a delay counts as standing. Default: 0.1.
        deadline: Seconds after which a message is too old to be handled. Default: None. `shed="drop"` needs
            it.
        kind: The type of its dead queue, "quorum" (the default) or "classic".
        filters: Filter values: the broker sends only chunks that may have messages with one of them. It sends
            whole chunks, so check again in the handler. Needs RabbitMQ 3.13 or later. Default: none,
            everything is sent.
        unfiltered: With `filters`: chunks with messages that have no filter value come, too. Default: False.
        fail_on_data_loss: If messages are gone that come next, or the stream is another one of that name,
            stop: `run` and `stop` raise DataLost. Default: False, log it and go on with what there is.
    """

    stream: str
    quantum: int = 1
    _: KW_ONLY
    name: str = ""
    start: Begin = "first"
    single_active: bool = False
    ordered: bool = False
    tier: int = 0
    rate: Number | None = None
    burst: int | None = None
    budget: Budget | None = None
    window: int | Literal["auto"] = "auto"
    shed: Shed = "shrink"
    target: float = 0.005
    interval: float = 0.1
    deadline: float | None = None
    kind: Literal["quorum", "classic"] = "quorum"
    filters: Sequence[str] = ()
    unfiltered: bool = False
    fail_on_data_loss: bool = False

    def __post_init__(self) -> None:
        text("stream", self.stream, "a stream's name, of 1 to 255 bytes", most=255)
        text("name", self.name, f"a name of up to 255 bytes, for stream {self.stream!r}", 0)
        one_of("shed", self.shed, get_args(Shed), ": a stream takes nothing back")
        one_of("kind", self.kind, ("quorum", "classic"))
        for argument in ("single_active", "unfiltered", "fail_on_data_loss"):
            flag(argument, getattr(self, argument))
        if isinstance(self.filters, str | bytes) or not isinstance(self.filters, Sequence):
            raise ConfigError("filters", self.filters, "a list of filter values")
        for each in self.filters:
            text("filters", each, "a list of filter values, of 1 to 255 bytes each", most=255)
        if self.unfiltered and not self.filters:
            raise ConfigError("unfiltered", self.unfiltered, "filters with it")
        _check_start(self.start)
        self.lane("-")

    def lane(self, name: str, super_stream: str = "") -> StreamQueue:
        """The lane, whose offset is stored under this name unless the stream has one of its own."""
        reference = self.name or name
        if not reference:
            allowed = f"a name for stream {self.stream!r}, under which its offset is stored"
            raise ConfigError("name", reference, allowed)
        text("name", reference, f"a name of up to 255 bytes, for stream {self.stream!r}", most=255)
        own = {each.name for each in fields(self)} - {"stream", "name"}
        given = {each: getattr(self, each) for each in own}
        given |= {"ordered": self.ordered or self.single_active, "filters": tuple(self.filters)}
        return StreamQueue(name=self.stream, reference=reference, super_stream=super_stream, **given)


def _check_start(start: Begin) -> None:
    need_streams()
    from leash.streams import offset_of

    offset_of(start, 0)


def need_streams() -> None:
    """LeashError, with what to install, if streams cannot be used here."""
    try:
        import leash.streams  # noqa: F401
    except ImportError as error:
        raise LeashError(str(error)) from None


def streams_of(asked: object, name: str) -> list[Queue]:
    """A consumer's `streams` argument as lanes; `name` is the consumer's."""
    allowed = "a list of names and Streams"
    if isinstance(asked, str | bytes | Mapping):  # iterable, but not as meant
        raise ConfigError("streams", asked, allowed)
    try:
        streams = list(asked)  # type: ignore[call-overload]
    except TypeError:
        raise ConfigError("streams", asked, allowed) from None
    for stream in streams:
        if not isinstance(stream, str | Stream):
            raise ConfigError("streams", stream, allowed)
    return [(Stream(each) if isinstance(each, str) else each).lane(name) for each in streams]


def check_streams(
    asked: str | Stream | None, name: str, on_exhausted: OnExhausted, port: int | None, any_streams: bool
) -> Stream | None:
    """The super stream. ConfigError for arguments of a consumer that do not fit its streams."""
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536):
        raise ConfigError("stream_port", port, "a port, from 1 to 65535")
    if (any_streams or asked is not None) and on_exhausted == "reject":
        raise ConfigError(
            "on_exhausted", on_exhausted, "park or discard: a stream has no dead-letter exchange"
        )
    if asked is None:
        return None
    if not isinstance(asked, Stream):
        asked = Stream(text("super_stream", asked, "the super stream's name, of 1 to 255 bytes", most=255))
    text("name", name, f"a name of 1 to 255 bytes, which all processes of {asked.stream!r} share", 1, 255)
    return asked


def with_partitions(
    settings: Settings, queues: list[Queue], super_stream: Stream, workers: int | None
) -> Settings:
    """Settings with a lane for each partition of a super stream, in order, beside other queues. Asks the
    broker for the partitions. Unless told, each has a worker.
    """
    from leash.streams import connect, parse, partitions

    place, name = parse(settings.uri, settings.stream_port), settings.name
    with connect(place, name=name) as connection:
        names = partitions(connection, super_stream.stream)
    streams = [replace(super_stream, stream=each, single_active=True) for each in names]
    lanes: list[Queue] = [each.lane(name, super_stream.stream) for each in streams]
    return replace(settings, queues=queues + lanes, workers=workers or max(1, len(lanes)))
