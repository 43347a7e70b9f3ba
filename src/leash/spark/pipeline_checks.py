"""What `leash run` asks the broker before it starts Spark: what is wrong there would otherwise cost Spark's
start, and end in its traces.

The query checks all of this again, and more. Here is only what is quick and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import typer

from leash.amqp import Connection, connect
from leash.amqp.queue_traits import traits_of
from leash.amqp.topology import check_exchange
from leash.errors import AuthenticationError, ConfigError, ConnectError, NotFound, VirtualHostError
from leash.fleet.tenants import tenants
from leash.partitions import layout_store
from leash.spark import connections
from leash.spark.driver.checks import Guard, refuse_disorder, refuse_stream
from leash.spark.pipeline_file import Pipeline
from leash.spark.settings import Broker, SinkSettings, SourceSettings, sink_settings, source_settings
from leash.spark.streams.links import Links, at_port, uri_of
from leash.spark.streams.positions import Positions
from leash.spark.streams.settings import (
    StreamSettings,
    are_for_streams,
    stream_settings,
    stream_sink_settings,
)
from leash.streams import connect as connect_stream

T = TypeVar("T")

_NAME = "leash spark check"


def check(pipeline: Pipeline) -> None:
    """Raise what the query would end with, if the broker, a queue or a stream is not as the file says."""
    if are_for_streams(pipeline.source):
        check_streams(stream_settings(pipeline.source))
    else:
        check_queues(source_settings(pipeline.source))
    if pipeline.format == "rabbitmq":
        _check_sink(pipeline.sink)


def check_queues(settings: SourceSettings) -> None:
    with _connected(settings.broker) as link:
        if settings.partitions is not None:
            layout_store.need(link, settings.partitions)
        if settings.tenants is not None:
            tenants.need(link, settings.tenants)
        option = "queue" if len(settings.queues) == 1 else "queues"
        for name, found in traits_of(link, [queue.name for queue in settings.queues]).items():
            if isinstance(found, NotFound):
                if settings.fail_on_data_loss:
                    Guard(settings).missing(name, found)
                continue
            refuse_stream(option, name, found)
            if settings.ordered and found is not None:
                refuse_disorder(name, found)


def check_streams(settings: StreamSettings) -> None:
    uri = uri_of(settings.place)
    _reach(lambda: at_port(lambda: connect_stream(uri, name=_NAME), settings.place)).close()
    links = Links(settings.place, _NAME)
    try:
        positions = Positions(settings, links)
        names = positions.names()
        positions.check(names)
        if settings.fail_on_data_loss:
            for name in names:
                positions.bounds(name)
    finally:
        links.close()


def _check_sink(given: Mapping[str, str]) -> None:
    if are_for_streams(given):
        from leash.spark.streams.sink import find_streams

        find_streams(stream_sink_settings(given))
    else:
        _check_exchange(sink_settings(given))


def _check_exchange(settings: SinkSettings) -> None:
    with _connected(settings.broker) as link:
        if settings.partitions is not None:
            layout_store.need(link, settings.partitions)
        elif settings.exchange:
            try:
                with link.channel() as channel:
                    check_exchange(channel, settings.exchange)
            except NotFound as error:
                raise ConfigError("exchange", settings.exchange, f"does not exist ({error.text})") from None


@contextmanager
def _connected(broker: Broker) -> Iterator[Connection]:
    uri = connections.uri_of(broker)
    link = _reach(lambda: connect(uri, name=_NAME))
    try:
        yield link
    finally:
        link.close()


def _reach(do: Callable[[], T]) -> T:
    """As patient with a broker that restarts as the query is, but not in silence."""
    try:
        return do()
    except (AuthenticationError, VirtualHostError):
        raise
    except ConnectError as error:
        typer.echo(f"leash: {error}; trying again for a minute", err=True)
    return connections.patiently(do)
