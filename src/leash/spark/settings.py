"""Options as typed values, for a source, a browse or a sink, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from leash.errors import ConfigError
from leash.fleet.budgets.settings import Terms
from leash.spark import options
from leash.spark.queue_options import QueueSpec, parse_queues
from leash.spark.staging import files

MAX_ORDERED_SPLIT = 65_535  # one prefetch window: 16 bits

NEEDS_STAGING = "is required: a folder that driver and executors share, apart from the checkpoint"
NO_BATCHES = (
    "a batch read would empty the queue with no way to retry; use readStream with trigger(availableNow=True) "
    "to take what is ready, or mode=browse to look without taking; a stream can be read as a batch, by the "
    "option stream"
)


@dataclass(frozen=True, kw_only=True)
class Broker:
    """How to reach the broker. Never printed: it holds the password."""

    url: str
    username: str | None
    password: str | None
    vhost: str | None
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None

    def __repr__(self) -> str:
        return "Broker(hidden)"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much goes into a batch and into a task. Durations are in nanoseconds, sizes in bytes."""

    queues: tuple[QueueSpec, ...]
    """Or streams. Empty with `partitions`, `tenants` or a super stream: then the driver looks them up, and a
    resize changes them.
    """
    max_records_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_records_per_trigger: int | None
    max_trigger_delay: int
    max_records_per_partition: int
    min_partitions: int | None
    max_rate_per_second: Fraction | None
    burst: int | None
    target_delay: int | None
    ordered: bool
    budget: Terms | None = None
    """None with streams."""


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Limits):
    """A source of queues."""

    broker: Broker
    partitions: str | None
    staging_location: str
    deduplication: str
    deduplication_window: int
    deduplication_max_rows: int
    fail_on_data_loss: bool
    orphaned_staging: str
    poll_timeout: int
    include_headers: bool
    tenants: str | None = None

    @property
    def budgets(self) -> dict[str, Terms]:
        """All budgets, by name."""
        known: dict[str, Terms] = {}
        for budget in (self.budget, *[queue.budget for queue in self.queues]):
            if budget is not None and known.setdefault(budget.name, budget) != budget:
                raise ConfigError("budget", budget.name, "the same numbers wherever one query names it")
        return known


@dataclass(frozen=True, kw_only=True)
class BrowseSettings:
    broker: Broker
    queue: str
    limit: int
    include_headers: bool


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    broker: Broker
    exchange: str | None
    """The exchange; with `partitions`, theirs."""
    partitions: str | None
    routing_key: str | None
    mandatory: bool
    confirm_timeout: int
    message_id: str


def source_settings(given: Mapping[str, str]) -> SourceSettings:
    values = options.parse(options.SOURCE, given)
    if values["tenants"] is not None:
        if any(values[name] is not None for name in ("queue", "queues", "partitions")):
            raise ConfigError("tenants", values["tenants"], "set tenants, or partitions, or queue, or queues")
        if values["ordered"]:
            raise ConfigError("ordered", True, "not with tenants: their lanes have no order")
        del values["queue"]
        values["queues"] = ()
    elif values["partitions"] is None:
        values["queues"] = parse_queues(values.pop("queue"), values["queues"])
    elif values.pop("queue") is not None or values["queues"] is not None:
        raise ConfigError("partitions", values["partitions"], "set partitions, or queue, or queues")
    else:
        values["queues"], values["ordered"] = (), True
    if values["staging_location"] is None:
        raise ConfigError("stagingLocation", None, NEEDS_STAGING)
    values["staging_location"] = files.absolute(values["staging_location"])
    check_limits(values)
    settings = SourceSettings(broker=broker_of(values), **values)
    assert settings.budgets is not None  # reports contradictory budgets now
    return settings


def check_limits(values: dict[str, Any]) -> None:
    """Refuse limits that do not fit together."""
    if values["burst"] is not None and values["max_rate_per_second"] is None:
        raise ConfigError("burst", values["burst"], "needs maxRatePerSecond")
    least, most = values["min_records_per_trigger"], values["max_records_per_trigger"]
    if least is not None and most is not None and least > most:
        raise ConfigError("minRecordsPerTrigger", least, f"must not exceed maxRecordsPerTrigger, {most}")


def browse_settings(given: Mapping[str, str]) -> BrowseSettings:
    lowered = {name.lower() for name in given}
    if "mode" not in lowered:
        raise ConfigError("mode", None, NO_BATCHES)
    values = options.parse(options.BROWSE, given)
    values.pop("mode")
    if values["queue"] is None:
        raise ConfigError("queue", None, "is required: the name of a queue")
    return BrowseSettings(broker=broker_of(values), **values)


def sink_settings(given: Mapping[str, str]) -> SinkSettings:
    values = options.parse(options.SINK, given)
    partitions = values["partitions"]
    if partitions is not None:
        if values["exchange"] is not None:
            raise ConfigError("partitions", partitions, "set partitions or exchange: it names the exchange")
        values["exchange"] = partitions
    return SinkSettings(broker=broker_of(values), **values)


def broker_of(values: dict[str, Any]) -> Broker:
    """Taken out of the values of a role."""
    return Broker(**{field.name: values.pop(field.name) for field in fields(Broker)})
