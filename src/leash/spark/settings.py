"""Options as typed values: what a source, a browse or a sink was told, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from leash.errors import ConfigError
from leash.fleet.terms import Terms
from leash.spark import options
from leash.spark.queues import QueueSpec, parse_queues
from leash.spark.staging import files

MAX_ORDERED_SPLIT = 65_535  # one prefetch window: 16 bits


@dataclass(frozen=True, kw_only=True)
class Broker:
    """Where and as whom. Never printed: it holds the password."""

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
class SourceSettings:
    """Durations in nanoseconds, sizes in bytes."""

    broker: Broker
    queues: tuple[QueueSpec, ...]
    """Those of `partitions` are looked up by the driver, and change when they are resized."""
    partitions: str | None
    max_records_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_records_per_trigger: int | None
    max_trigger_delay: int
    max_records_per_partition: int
    min_partitions: int | None
    max_rate_per_second: Fraction | None
    burst: int | None
    budget: Terms | None
    target_delay: int | None
    staging_location: str
    deduplication: str
    deduplication_window: int
    deduplication_max_rows: int
    fail_on_data_loss: bool
    orphaned_staging: str
    poll_timeout: int
    ordered: bool
    include_headers: bool

    @property
    def budgets(self) -> dict[str, Terms]:
        """All budgets by name."""
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
    """That of `partitions`, where those are named."""
    partitions: str | None
    routing_key: str | None
    mandatory: bool
    confirm_timeout: int
    message_id: str


def source_settings(given: Mapping[str, str]) -> SourceSettings:
    values = options.parse(options.SOURCE, given)
    if values["partitions"] is None:
        values["queues"] = parse_queues(values.pop("queue"), values["queues"])
    elif values.pop("queue") is not None or values["queues"] is not None:
        raise ConfigError("partitions", values["partitions"], "set partitions, or queue, or queues")
    else:
        values["queues"], values["ordered"] = (), True
    if values["staging_location"] is None:
        raise ConfigError(
            "stagingLocation",
            None,
            "is required: a folder that driver and executors share, apart from the checkpoint",
        )
    values["staging_location"] = files.absolute(values["staging_location"])
    if values["burst"] is not None and values["max_rate_per_second"] is None:
        raise ConfigError("burst", values["burst"], "needs maxRatePerSecond")
    least, most = values["min_records_per_trigger"], values["max_records_per_trigger"]
    if least is not None and most is not None and least > most:
        raise ConfigError("minRecordsPerTrigger", least, f"must not exceed maxRecordsPerTrigger, {most}")
    settings = SourceSettings(broker=_broker(values), **values)
    assert settings.budgets is not None  # what is wrong with them is said now
    return settings


def browse_settings(given: Mapping[str, str]) -> BrowseSettings:
    lowered = {name.lower() for name in given}
    if "mode" not in lowered:
        raise ConfigError(
            "mode",
            None,
            "a batch read would have to empty the queue with no way to retry; use readStream with "
            "trigger(availableNow=True) to take what is there, or mode=browse to look without taking",
        )
    values = options.parse(options.BROWSE, given)
    values.pop("mode")
    if values["queue"] is None:
        raise ConfigError("queue", None, "is required: the name of a queue")
    return BrowseSettings(broker=_broker(values), **values)


def sink_settings(given: Mapping[str, str]) -> SinkSettings:
    values = options.parse(options.SINK, given)
    partitions = values["partitions"]
    if partitions is not None:
        if values["exchange"] is not None:
            raise ConfigError("partitions", partitions, "set partitions or exchange: it names the exchange")
        values["exchange"] = partitions
    return SinkSettings(broker=_broker(values), **values)


def _broker(values: dict[str, Any]) -> Broker:
    return Broker(**{field.name: values.pop(field.name) for field in fields(Broker)})
