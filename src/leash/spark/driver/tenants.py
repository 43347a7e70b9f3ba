"""The option `tenants`: its lanes, looked up when the query starts. They never change after that."""

from __future__ import annotations

from dataclasses import replace

from leash.fleet.tenants.tenants import lanes_of, need
from leash.spark.connections import connection, patiently
from leash.spark.queue_options import QueueSpec
from leash.spark.settings import SourceSettings


def with_lanes(settings: SourceSettings) -> SourceSettings:
    """The settings with the tenants' lanes as queues, all with the same quantum."""
    name = settings.tenants
    if name is None:
        return settings
    layout = patiently(lambda: need(connection(settings.broker, "plan"), name))
    return replace(settings, queues=tuple(QueueSpec(lane) for lane in lanes_of(layout, name)))
