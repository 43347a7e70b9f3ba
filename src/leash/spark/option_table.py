"""Every Spark option: its name, whose it is, its default, how it is read, and what the documentation says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leash.spark import budget_option, option_values
from leash.units import SECOND

SOURCE, SINK, BROWSE = "source", "sink", "browse"
STREAMS, STREAM_READ, STREAM_SINK = "stream source", "batch read of streams", "stream sink"


@dataclass(frozen=True, slots=True)
class Option:
    """`parse` raises ValueError on a value that does not fit `allowed`."""

    name: str
    roles: tuple[str, ...]
    parse: Callable[[str], Any]
    default: Any
    allowed: str
    doc: str
    alias: str = ""
    shown: str = ""

    @property
    def field(self) -> str:
        """`maxRecordsPerTrigger` -> `max_records_per_trigger`, `tls.caFile` -> `tls_ca_file`."""
        return re.sub(r"([A-Z])", r"_\1", self.name.replace(".", "_")).lower()


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for name in names:
            if text.strip().lower() == name.lower():
                return name
        raise ValueError(text)

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


_COUNT = "a whole number of at least 1"
_DURATION = "a duration with its unit, such as 250ms, 5s or 10m"
_YES_NO = "true or false"
_SIZE = "a size, such as 4096, 64m or 1g"
_OFFSETS = "earliest, latest, or JSON with an offset, earliest or latest per stream"
_RATE = "messages per second, above 0, such as 500 or 0.5"
_ALL = (SOURCE, SINK, BROWSE, STREAMS, STREAM_READ, STREAM_SINK)
_QUEUES = (SOURCE, SINK, BROWSE)
_STREAMS = (STREAMS, STREAM_READ, STREAM_SINK)
_TAKE = (SOURCE, BROWSE)
_READ = (STREAMS, STREAM_READ)
_PLANNED = (SOURCE, STREAMS)
_S = SECOND

TABLE: tuple[Option, ...] = (
    Option("url", _QUEUES, _text, None, "an AMQP URL; hosts separated by commas are tried in turn",
           "Where the broker is: `amqp://user:password@host:5672/vhost`, or `amqps://`. Spark redacts "
           "this option."),
    Option("url", _STREAMS, _text, None, "a URL; hosts separated by commas are tried in turn",
           "Where the broker is: `rabbitmq-stream://user:password@host:5552/vhost`, or "
           "`rabbitmq-stream+tls://`; or its `amqp://` or `amqps://` URL, with `streamPort`. Spark redacts "
           "this option."),
    Option("username", _ALL, _text, None, "a user name", "Overrides the one in `url`."),
    Option("password", _ALL, _text, None, "a password", "Overrides the one in `url`. Spark redacts it too."),
    Option("vhost", _ALL, _text, None, "a virtual host", "Overrides the one in `url`."),
    Option("tls.caFile", _ALL, _text, None, "a PEM file", "Trust this authority instead of the system's."),
    Option("tls.certFile", _ALL, _text, None, "a PEM file", "Present this client certificate."),
    Option("tls.keyFile", _ALL, _text, None, "a PEM file", "The certificate's key, if not in that file."),
    Option("queue", _TAKE, _text, None, "the name of a queue", "Read this one queue."),
    Option("queues", (SOURCE,), _text, None, "names with quanta, or JSON",
           'Read several queues, each in proportion to its quantum: `gold:10,free:1`, or JSON with '
           '`quantum`, `rate`, `burst` (of this query), `budget` and `tier` per queue: '
           '`{"gold": {"quantum": 10, "tier": 0}, "free": {"rate": 50}}`. Tier 0 goes '
           'first.'),
    Option("partitions", (SOURCE, SINK), _text, None, "the name of partitions that `leash ring` made",
           "Read all queues of partitions, each in order, also during resizes (implies `ordered`); or "
           "publish to them, by key."),
    Option("tenants", (SOURCE,), _text, None, "the name of tenants that `leash tenants` made",
           "Read all lanes of tenants, in equal parts. Queues that they adopted are moved by live consumers "
           "only."),
    Option("maxRecordsPerTrigger", _PLANNED, option_values.count, None, _COUNT,
           "At most this many messages in a batch.", alias="maxOffsetsPerTrigger"),
    Option("maxBytesPerTrigger", _PLANNED, option_values.size, None, _SIZE,
           "About this many bytes of message bodies in a batch, by the mean size seen so far."),
    Option("minRecordsPerTrigger", _PLANNED, option_values.count, None, _COUNT,
           "Wait until this many are ready, but no longer than `maxTriggerDelay`. AvailableNow ignores it."),
    Option("maxTriggerDelay", _PLANNED, option_values.duration, 60 * _S, _DURATION,
           "The longest wait for `minRecordsPerTrigger`.", shown="1m"),
    Option("maxRecordsPerPartition", (SOURCE,), option_values.count, 10_000, _COUNT,
           "Cut the batch into tasks of at most this many messages; smaller lets fast executors take more."),
    Option("minPartitions", (SOURCE,), option_values.count, None, _COUNT,
           "Cut finer if a batch would have fewer tasks. `ordered` ignores it."),
    Option("maxRatePerSecond", _PLANNED, option_values.rate, None, _RATE,
           "The rate of this query, over all its queues or streams, batches and restarts. For one limit over "
           "queries and workers use `budget` (queues only)."),
    Option("burst", _PLANNED, option_values.count, None, _COUNT,
           "How many messages `maxRatePerSecond` may let through at once. Default: one second's worth."),
    Option("budget", (SOURCE,), budget_option.parse_budget, None, budget_option.FORMS,
           "A limit shared with every process and query that names it (see budgets.md): a batch has at most "
           "as many messages as there were permits when it was planned."),
    Option("targetDelay", _PLANNED, option_values.duration, None, _DURATION,
           "Size batches so that each takes about this long, judging by the last ones."),
    Option("stagingLocation", (SOURCE,), _text, None, "a folder that driver and executors share",
           "Required. Messages wait here between leaving the queue and being committed: a local or mounted "
           "folder, `s3://`, `gs://` or `abfs://`. Keep it as safe as the checkpoint, and apart from it."),
    Option("deduplication", (SOURCE,), _one_of("none", "messageId"), "none", "none or messageId",
           "`messageId` drops redelivered copies of rows that were already staged."),
    Option("deduplicationWindow", (SOURCE,), option_values.duration, 3600 * _S, _DURATION,
           "How long to remember rows whose acknowledgement may have been lost.", shown="1h"),
    Option("deduplicationMaxRows", (SOURCE,), option_values.count, 1_000_000, _COUNT,
           "How many such rows to remember; 16 bytes each. The oldest go first, with a warning."),
    Option("failOnDataLoss", (SOURCE,), option_values.flag, True, _YES_NO,
           "Fail if a queue is gone or a staged file is missing or corrupt; otherwise warn and go on."),
    Option("orphanedStaging", (SOURCE,), _one_of("fail", "adopt", "discard"), "fail",
           "fail, adopt or discard",
           "What a new checkpoint does with staged messages of an older one."),
    Option("pollTimeout", (SOURCE,), option_values.duration, _S // 4, _DURATION,
           "How long a task waits on an empty queue before it returns less than granted.", shown="250ms"),
    Option("ordered", (SOURCE,), option_values.flag, False, _YES_NO,
           "Keep each queue's order: one task per queue, at most 65,535 messages, and no other consumer."),
    Option("includeHeaders", _TAKE, option_values.flag, False, _YES_NO, "Add the `headers` column."),
    Option("mode", (BROWSE,), _one_of("browse"), None, "browse",
           "`browse` looks at messages and leaves them in the queue. It is the only batch read."),
    Option("limit", (BROWSE,), option_values.count, 100, _COUNT, "Look at this many messages at most."),
    Option("exchange", (SINK,), str, None, "the name of an exchange",
           "Publish to this exchange; the default one if empty. A row's `exchange` column wins."),
    Option("routingKey", (SINK,), str, None, "a routing key",
           "Publish with this routing key. A row's `routing_key` column wins."),
    Option("mandatory", (SINK,), option_values.flag, True, _YES_NO, "Fail on a message that no queue takes."),
    Option("confirmTimeout", (SINK,), option_values.duration, 30 * _S, _DURATION,
           "How long to wait for the broker's confirms, and for a resource alarm to end.", shown="30s"),
    Option("messageId", (SINK,), _one_of("auto", "none"), "none", "auto or none",
           "`auto` gives rows without a `message_id` an id made of query, batch, partition and row, so that "
           "a retried batch repeats its ids."),
    Option("stream", _READ, _text, None, "the name of a stream", "Read this one stream."),
    Option("streams", _READ, _text, None, "names with quanta, or JSON",
           'Read several, shared out by quantum: `gold:10,free:1`, or JSON with `quantum`, `rate`, '
           '`burst` and `tier` per stream, as for queues. A batch read takes all of each.'),
    Option("superStream", _READ, _text, None, "the name of a super stream",
           "Read all partitions of a super stream; one that is added later, from its first message on."),
    Option("streamPort", _STREAMS, option_values.count, None, "a port",
           "Where streams are, if `url` is an AMQP URL. Default: 5552, with TLS 5551.", shown="5552"),
    Option("loadBalancer", _STREAMS, option_values.flag, False, _YES_NO,
           "Stay with the hosts of `url`: what the nodes call themselves cannot be reached from here."),
    Option("startingOffsets", _READ, option_values.offsets, None, _OFFSETS,
           "Where a new query begins: `earliest`, `latest`, or JSON with an offset or one of these words per "
           'stream: `{"orders-0": 500, "orders-1": "latest"}`; those left out begin at the earliest. A '
           "checkpoint wins.", shown="earliest"),
    Option("startingTimestamp", _READ, option_values.moment, None,
           "a time with its zone, such as 2026-01-31T08:00:00Z, or milliseconds since 1970",
           "Instead: begin with the first chunk that the broker wrote at that time or later."),
    Option("endingOffsets", (STREAM_READ,), option_values.offsets, None, _OFFSETS,
           "Where a batch read ends: `latest`, or JSON with the offset after the last one, or `latest`, per "
           "stream.", shown="latest"),
    Option("filterValues", _READ, option_values.names, (), "values, separated by commas",
           "Let the broker leave out chunks that hold none of these filter values (RabbitMQ 3.13 or "
           "later). Messages with other values may come along: filter again."),
    Option("matchUnfiltered", _READ, option_values.flag, False, _YES_NO,
           "With `filterValues`: messages that have no filter value, too."),
    Option("maxRecordsPerPartition", _READ, option_values.count, 250_000, _COUNT,
           "Cut what is read into tasks of at most this many messages. A task receives whole chunks of up to "
           "thousands of messages, so with small tasks much is received twice."),
    Option("minPartitions", _READ, option_values.count, None, _COUNT,
           "Cut finer where there would be fewer tasks. `ordered` ignores it."),
    Option("ordered", _READ, option_values.flag, False, _YES_NO,
           "One task per stream and batch, which gives its rows in their order."),
    Option("failOnDataLoss", _READ, option_values.flag, True, _YES_NO,
           "Fail when a stream is missing, was deleted and made again, or has lost to retention what was not "
           "read yet; else warn and go on with what there is."),
    Option("includeProperties", _READ, option_values.flag, False, _YES_NO,
           "Add the columns `message_id` and `properties`. They run Python code for every message."),
    Option("includeHeaders", _READ, option_values.flag, False, _YES_NO,
           "Add the column `headers`: the application properties. It costs as much."),
    Option("includeAnnotations", _READ, option_values.flag, False, _YES_NO,
           "Add the column `annotations`. It costs as much."),
    Option("stream", (STREAM_SINK,), _text, None, "the name of a stream", "Publish to this stream."),
    Option("superStream", (STREAM_SINK,), _text, None, "the name of a super stream",
           "Publish to a super stream: the column `routing_key` says which partition, as the Java client "
           "would."),
    Option("confirmTimeout", (STREAM_SINK,), option_values.duration, 30 * _S, _DURATION,
           "How long the broker may confirm nothing: while it is away, or a resource alarm lasts.",
           shown="30s"),
)  # fmt: skip
