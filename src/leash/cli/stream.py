"""`leash stream`: look at streams and super streams, follow them, make them."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from leash.cli import which
from leash.cli.dead import preview, shown
from leash.errors import BrokerError, ConfigError, StreamMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leash.streams import Connection

stream_app = typer.Typer(
    help="Streams and super streams: what is in them, and who reads them.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A stream or a super stream, like orders.", show_default=False)
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        help="The stream port, if the URI is amqp://... (5552, or 5551 with TLS).",
        envvar="LEASH_STREAM_PORT",
        show_default=False,
    ),
]
LoadBalancer = Annotated[
    bool, typer.Option("--load-balancer", help="Use only the hosts in the URI, not the nodes' own names.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@stream_app.command()
def show(
    name: Name,
    consumers: Annotated[
        list[str] | None,
        typer.Option("--consumer", metavar="NAME", help="A name under which offsets are stored; repeatable."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Seconds to count messages for the rate; 0 leaves it out.", min=0)
    ] = 1.0,
    as_json: AsJson = False,
    uri: which.BrokerUri = None,
    port: Port = None,
    load_balancer: LoadBalancer = False,
) -> None:
    """Show partitions, first and last offset, messages a second, and how far behind named consumers are.

    Consumers that --consumer does not name are found only if the broker has rabbitmq_stream_management.
    """
    place = which.stream(uri, port)
    with _Streams(place, name, load_balancer) as streams:
        before = {each: streams.bounds(each).end for each in streams.names} if seconds else {}
        began = time.monotonic()
        time.sleep(seconds)
        rows = []
        for each in streams.names:
            bounds = streams.bounds(each)
            rate = (bounds.end - before[each]) / (time.monotonic() - began) if seconds else None
            stored = streams.stored(each, consumers)
            found = streams.placements[each]
            rows.append(
                {
                    "stream": each,
                    "first": bounds.first if bounds.end else None,
                    "last": bounds.end - 1 if bounds.end else None,
                    "messages_per_second": rate,
                    "leader": str(found.leader) if found.leader else None,
                    "replicas": [str(member) for member in found.replicas],
                    "consumers": [
                        {"name": who, "offset": at, "lag": _lag(at, bounds.first, bounds.end)}
                        for who, at in stored.items()
                    ],
                }
            )
        if as_json:
            typer.echo(json.dumps({"name": name, "super_stream": streams.is_super, "partitions": rows}))
            return
        if streams.is_super:
            typer.echo(f"super stream {shown(name)}, {len(rows)} partitions")
    _table(rows)


def _lag(stored: int | None, first: int, end: int) -> int:
    """Messages after the stored one: a stored offset is that of the last message that is done."""
    return max(0, end - (first if stored is None else max(first, stored + 1)))


def _table(rows: list[dict[str, Any]]) -> None:
    width = max(len("stream"), *(len(shown(row["stream"])) for row in rows))
    typer.echo(f"{'stream':<{width}}  {'first':>12}  {'last':>12}  {'messages/s':>10}  leader, replicas")
    for row in rows:
        first, last = ("-" if row[key] is None else row[key] for key in ("first", "last"))
        rate = "-" if row["messages_per_second"] is None else f"{row['messages_per_second']:.0f}"
        where = ", ".join([row["leader"] or "no leader", *row["replicas"]])
        typer.echo(f"{shown(row['stream']):<{width}}  {first:>12}  {last:>12}  {rate:>10}  {where}")
        for each in row["consumers"]:
            at = "nothing stored" if each["offset"] is None else f"stored {each['offset']}"
            typer.echo(f"{'':<{width}}  consumer {shown(each['name'])}: {at}, {each['lag']} behind")


@stream_app.command()
def tail(
    name: Name,
    start: Annotated[
        str, typer.Option("--from", help="first, last (chunk), next, an offset, or an interval such as 15m.")
    ] = "next",
    limit: Annotated[int | None, typer.Option(help="Exit after this many messages.", min=1)] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit at the stream's present end.")] = False,
    size: Annotated[int, typer.Option("--bytes", help="How many bytes of each body to print.", min=0)] = 200,
    as_json: AsJson = False,
    uri: which.BrokerUri = None,
    port: Port = None,
    load_balancer: LoadBalancer = False,
) -> None:
    """Print messages as they come: offset, time and the beginning of the body. Nothing is stored."""
    place = which.stream(uri, port)
    from leash.streams import Reader, offset_of

    begin = int(start) if start.isdecimal() else start
    try:
        offset_of(begin, time.time())
    except ConfigError as error:
        raise ConfigError("--from", start, str(error).partition(": ")[2]) from None
    left = limit
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        with _Streams(place, name, load_balancer) as streams:
            names = streams.names
            ends = {each: streams.bounds(each).end if once else None for each in names}
        readers = [
            stack.enter_context(
                Reader(
                    *(place.uri, each, begin),
                    end=ends[each],
                    load_balancer=load_balancer,
                    name="leash stream tail",
                    batch_bytes=256 << 10,
                )
            )
            for each in names
            if ends[each] != 0
        ]
        while readers and left != 0:
            readers = [each for each in readers if not each.done]
            for reader in readers:
                batch = reader.read(timeout=60.0 if len(readers) == 1 else 0.05)
                if batch is None:
                    continue
                for row in batch.slice(0, left).to_pylist():
                    typer.echo(_line(row, reader.stream, size, as_json, len(names) > 1))
                left = None if left is None else max(0, left - batch.num_rows)
                if left == 0:
                    break


def _line(row: dict[str, Any], stream: str, size: int, as_json: bool, several: bool) -> str:
    at = row["timestamp"].isoformat(timespec="milliseconds")
    if as_json:
        body = row["value"].decode("utf-8", "replace")
        return json.dumps({"stream": stream, "offset": row["offset"], "timestamp": at, "value": body})
    where = f"{shown(stream)} " if several else ""
    return f"{where}{row['offset']}  {at}  {preview(row['value'], size)}"


@stream_app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(help="Create a super stream with this many partitions.", min=1, show_default=False),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(help="Delete messages older than this, such as 7D or 12h.", show_default=False),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Keep about this many bytes.", min=1, show_default=False)
    ] = None,
    segment_bytes: Annotated[
        int | None,
        typer.Option(help="Size of a segment; retention deletes whole segments.", min=1, show_default=False),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="How many nodes keep a copy.", min=1, show_default=False)
    ] = None,
    uri: which.BrokerUri = None,
    port: Port = None,
) -> None:
    """Create a stream, or with --partitions a super stream. An existing one is left as it is."""
    place = which.stream(uri, port)
    from leash.streams import connect, create_stream, create_super_stream

    given = {
        "max-age": max_age,
        "max-length-bytes": max_bytes,
        "stream-max-segment-size-bytes": segment_bytes,
        "initial-cluster-size": members,
    }
    arguments = {key: str(value) for key, value in given.items() if value is not None}
    with connect(place.uri, name="leash stream create") as connection:
        if partitions is None:
            made = create_stream(connection, name, arguments)
        else:
            made = create_super_stream(connection, name, partitions, arguments=arguments, amqp=place.amqp)
    what = "stream" if partitions is None else f"super stream of {partitions}"
    typer.echo(f"{what} {shown(name)} {'made' if made else 'is there already'}")


class _Streams:
    """The streams that a name stands for, and connections to nodes that have them."""

    def __init__(self, place: which.StreamPlace, name: str, load_balancer: bool) -> None:
        from leash.streams import connect, metadata, wire

        self._place = place
        self._load_balancer = load_balancer
        self._links: dict[str, Connection] = {}
        self._seed = connect(place.uri, name="leash stream")
        try:
            self.is_super = False
            self.names = [name]
            if metadata(self._seed, name)[name].code == wire.MISSING:
                self.names, self.is_super = self._partitions(name), True
            self.placements = metadata(self._seed, *self.names)
        except BaseException:
            self._seed.close()
            raise

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *_: object) -> None:
        for each in {id(link): link for link in (self._seed, *self._links.values())}.values():
            each.close()

    def bounds(self, stream: str) -> Any:
        from leash.streams import first_and_end

        return first_and_end(self._link(stream), stream)

    def stored(self, stream: str, consumers: list[str] | None) -> dict[str, int | None]:
        """Offsets by name: of the consumers given, or else of all that the broker names."""
        from leash.streams import query_offset

        if consumers:
            return {each: query_offset(self._link(stream), each, stream) for each in consumers}
        return dict(self._told(stream))

    def _told(self, stream: str) -> Iterator[tuple[str, int]]:
        told = self._management(f"/api/stream/{self._vhost}/{quote(stream, safe='')}/tracking?type=offset")
        yield from sorted((told or {}).get("offsets", {}).items())

    def _partitions(self, name: str) -> list[str]:
        from leash.streams import partitions

        try:
            return partitions(self._seed, name)
        except StreamMissing:
            queue = self._management(f"/api/queues/{self._vhost}/{quote(name, safe='')}")
            if queue:
                raise ConfigError("NAME", name, f"a stream: this is a {queue.get('type')} queue") from None
            raise StreamMissing(name, "there is no stream and no super stream of that name") from None

    @property
    def _vhost(self) -> str:
        return quote(self._seed.uri.vhost, safe="")

    def _management(self, path: str) -> Any:
        """What the management plugin says; None if it does not."""
        with contextlib.suppress(BrokerError):
            return self._place.management.ask("GET", path)
        return None

    def _link(self, stream: str) -> Connection:
        if stream not in self._links:
            leader = self.placements[stream].leader
            there = [link for link in (self._seed, *self._links.values()) if link.itself == leader]
            self._links[stream] = there[0] if there else self._opened(stream)
        return self._links[stream]

    def _opened(self, stream: str) -> Connection:
        from leash.streams import open_leader

        return open_leader(self._place.uri, stream, load_balancer=self._load_balancer, name="leash stream")
