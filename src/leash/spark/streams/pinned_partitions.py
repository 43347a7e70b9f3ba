"""Which partitions of a super stream a batch goes to: those of its first attempt, through restarts.

A partition that is added in between would send rows elsewhere that are in the streams already. So the first
attempt notes how many there were, in the first partition, where consumers store their offsets. Partitions are
only ever added, at the end.
"""

from __future__ import annotations

import time

from leash.errors import StreamUnavailable
from leash.spark.streams.links import Links, patiently
from leash.spark.streams.settings import StreamSinkSettings
from leash.streams import query_offset, store_offset

_COUNTS = 1 << 16
_WAIT = 10.0  # seconds: there is no answer to a note, so it is asked for


def pinned(settings: StreamSinkSettings, query: str, batch: int) -> tuple[str, ...]:
    """The streams that a batch goes to."""
    if settings.super_stream is None:
        assert settings.stream is not None
        return (settings.stream,)
    links = Links(settings.place, "leash spark sink")
    try:
        names = links.partitions(settings.super_stream)
        return patiently(lambda: _pin(links, f"leash:{query}", batch, names), settings.place)
    finally:
        links.close()


def _pin(links: Links, reference: str, batch: int, names: tuple[str, ...]) -> tuple[str, ...]:
    link = links.leader(names[0])
    noted = query_offset(link, reference, names[0])
    if noted is None or noted // _COUNTS != batch:
        if noted is not None and noted // _COUNTS > batch:
            return names[: noted % _COUNTS]  # an attempt that comes too late: the ids will say so
        noted = batch * _COUNTS + len(names)
        store_offset(link, reference, names[0], noted)
        deadline = time.monotonic() + _WAIT
        while (query_offset(link, reference, names[0]) or 0) < noted:
            if time.monotonic() > deadline:
                raise StreamUnavailable(names[0], "does not keep the note about a batch's partitions")
            time.sleep(0.005)
    return names[: noted % _COUNTS]
