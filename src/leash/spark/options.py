"""The one table of Spark options: it parses, it checks, and it writes the documentation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leash.errors import ConfigError
from leash.spark import budgets, option_values
from leash.spark.budgets import parse_budget
from leash.units import SECOND

SOURCE, SINK, BROWSE = "source", "sink", "browse"

# Spark hands these to a sink or a source together with the user's own options.
_SPARKS_OWN = ("checkpointlocation", "asyncprogresstracking")
_SECRET = re.compile(r"://[^/\s@]*:[^/\s]*@")
_MAY_HOLD_SECRETS = ("url", "password")


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


_COUNT = "a whole number from 1 on"
_DURATION = "a duration with its unit, such as 250ms, 5s or 10m"
_YES_NO = "true or false"
_SIZE = "a size, such as 4096, 64m or 1g"
_RATE = "messages a second, above 0, such as 500 or 0.5"
_ALL = (SOURCE, SINK, BROWSE)
_TAKE = (SOURCE, BROWSE)
_S = SECOND

TABLE: tuple[Option, ...] = (
    Option("url", _ALL, _text, None, "an AMQP URL; hosts separated by commas are tried in turn",
           "Where the broker is: `amqp://user:password@host:5672/vhost`, or `amqps://`. Spark redacts "
           "this option."),
    Option("username", _ALL, _text, None, "a user name", "Instead of the one in `url`."),
    Option("password", _ALL, _text, None, "a password", "Instead of the one in `url`. Spark redacts it too."),
    Option("vhost", _ALL, _text, None, "a virtual host", "Instead of the one in `url`."),
    Option("tls.caFile", _ALL, _text, None, "a PEM file", "Trust this authority instead of the system's."),
    Option("tls.certFile", _ALL, _text, None, "a PEM file", "Present this client certificate."),
    Option("tls.keyFile", _ALL, _text, None, "a PEM file", "The certificate's key, if not in that file."),
    Option("queue", _TAKE, _text, None, "the name of a queue", "Read this one queue."),
    Option("queues", (SOURCE,), _text, None, "names with quanta, or JSON",
           'Read several, shared out by quantum: `gold:10,free:1`, or JSON with `quantum`, `rate`, '
           '`burst` (of this query), `budget` and '
           '`tier` per queue: `{"gold": {"quantum": 10, "tier": 0}, "free": {"rate": 50}}`. Tier 0 goes '
           'first.'),
    Option("partitions", (SOURCE, SINK), _text, None, "the name of partitions that `leash ring` made",
           "Read all queues of a partitioned topology, each in order, through resizes too (implies "
           "`ordered`); or publish to it, by key."),
    Option("maxRecordsPerTrigger", (SOURCE,), option_values.count, None, _COUNT,
           "At most this many messages in a batch.", alias="maxOffsetsPerTrigger"),
    Option("maxBytesPerTrigger", (SOURCE,), option_values.size, None, _SIZE,
           "About this many bytes of message bodies in a batch, by the mean size seen so far."),
    Option("minRecordsPerTrigger", (SOURCE,), option_values.count, None, _COUNT,
           "Wait until this many are ready, but no longer than `maxTriggerDelay`. AvailableNow ignores it."),
    Option("maxTriggerDelay", (SOURCE,), option_values.duration, 60 * _S, _DURATION,
           "The longest wait for `minRecordsPerTrigger`.", shown="1m"),
    Option("maxRecordsPerPartition", (SOURCE,), option_values.count, 10_000, _COUNT,
           "Cut the batch into tasks of at most this many messages; smaller lets fast executors take more."),
    Option("minPartitions", (SOURCE,), option_values.count, None, _COUNT,
           "Cut finer where a batch would have fewer tasks. `ordered` ignores it."),
    Option("maxRatePerSecond", (SOURCE,), option_values.rate, None, _RATE,
           "Of this query, over all its queues, across batches and restarts. For one limit over queries and "
           "workers use `budget`."),
    Option("burst", (SOURCE,), option_values.count, None, _COUNT,
           "How many messages `maxRatePerSecond` may let through at once. Default: one second's worth."),
    Option("budget", (SOURCE,), parse_budget, None, budgets.FORMS,
           "A limit shared with every process and query that names it (see budgets.md): a batch has as many "
           "messages as permits were there when it was planned."),
    Option("targetDelay", (SOURCE,), option_values.duration, None, _DURATION,
           "Size batches so that one takes about this long, from how fast the last ones went."),
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
           "Fail on a queue that vanished or a staged file that is missing or corrupt; else warn and go on."),
    Option("orphanedStaging", (SOURCE,), _one_of("fail", "adopt", "discard"), "fail",
           "fail, adopt or discard",
           "What to do at the start of a new checkpoint with staged messages of an older one."),
    Option("pollTimeout", (SOURCE,), option_values.duration, _S // 4, _DURATION,
           "How long a task waits on an empty queue before it returns less than granted.", shown="250ms"),
    Option("ordered", (SOURCE,), option_values.flag, False, _YES_NO,
           "Keep each queue's order: one task per queue, at most 65,535 messages, and no other consumer."),
    Option("includeHeaders", _TAKE, option_values.flag, False, _YES_NO, "Add the `headers` column."),
    Option("mode", (BROWSE,), _one_of("browse"), None, "browse",
           "`browse` looks at messages and leaves them in the queue. The only batch read there is."),
    Option("limit", (BROWSE,), option_values.count, 100, _COUNT, "Look at this many messages at most."),
    Option("exchange", (SINK,), str, None, "the name of an exchange",
           "Publish to this exchange; the default one if empty. A row's `exchange` column wins."),
    Option("routingKey", (SINK,), str, None, "a routing key",
           "Publish with this routing key. A row's `routing_key` column wins."),
    Option("mandatory", (SINK,), option_values.flag, True, _YES_NO, "Fail on a message that no queue takes."),
    Option("confirmTimeout", (SINK,), option_values.duration, 30 * _S, _DURATION,
           "How long to wait for the broker's confirms, and for a resource alarm to end.", shown="30s"),
    Option("messageId", (SINK,), _one_of("auto", "none"), "none", "auto or none",
           "`auto` gives rows without a `message_id` one made of query, batch, partition and row, so that a "
           "retried batch repeats its ids."),
)  # fmt: skip


def parse(role: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Every option of that role by field name, defaults filled in; ConfigError on the first that is wrong."""
    known = {
        name.lower(): option
        for option in TABLE
        if role in option.roles
        for name in (option.name, option.alias)
    }
    known.pop("", None)
    values = {option.field: option.default for option in known.values()}
    seen: dict[str, str] = {}
    for name, text in given.items():
        if name.lower().startswith(_SPARKS_OWN):
            continue
        if name.lower() not in _MAY_HOLD_SECRETS and _SECRET.search(text):
            raise ConfigError(
                name, _Hidden(), "holds a password; only url and password may, Spark redacts those"
            )
        option = known.get(name.lower())
        if option is None:
            raise ConfigError(name, _Hidden(), _unknown(role, name, [*known]))
        if option.name in seen:
            raise ConfigError(name, text, f"means the same as {seen[option.name]}: set one of them")
        seen[option.name] = name
        try:
            values[option.field] = option.parse(text)
        except (ValueError, ZeroDivisionError):
            shown = _Hidden() if name.lower() in _MAY_HOLD_SECRETS else text
            raise ConfigError(option.name, shown, option.allowed) from None
    if values["url"] is None:
        raise ConfigError("url", None, "is required: " + TABLE[0].allowed)
    return values


def markdown(role: str) -> str:
    """The table of one role's options, for the documentation."""
    lines = ["| option | default | value | |", "|---|---|---|---|"]
    for option in TABLE:
        if role in option.roles:
            name = f"`{option.name}`" + (f" (or `{option.alias}`)" if option.alias else "")
            lines.append(f"| {name} | {_shown(option)} | {option.allowed} | {option.doc} |")
    return "\n".join(lines) + "\n"


class _Hidden:
    """Stands for a value that may be a secret; what an unknown option holds, nobody can tell."""

    def __repr__(self) -> str:
        return "(hidden)"


def _shown(option: Option) -> str:
    if option.shown:
        return option.shown
    if option.default is None:
        return ""
    return str(option.default).lower() if isinstance(option.default, bool) else str(option.default)


def _unknown(role: str, name: str, known: list[str]) -> str:
    """The nearest name, or who else would take it."""
    spelled = {n.lower(): n for option in TABLE for n in (option.name, option.alias) if n}
    if name.lower() == "path":
        return "RabbitMQ has no paths: use load() and start() without one"
    if name.lower() in spelled:
        owners = next(o.roles for o in TABLE if name.lower() in (o.name.lower(), o.alias.lower()))
        return f"is an option of the {' and the '.join(owners)}, not of the {role}"
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"unknown option; did you mean {spelled[near[0]]}?" if near else f"unknown option of the {role}"
