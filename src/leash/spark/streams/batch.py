"""What a batch read reads: planned once, from one look at every stream."""

from __future__ import annotations

from leash.spark.streams.driver import cut_ranges
from leash.spark.streams.links import Links
from leash.spark.streams.offsets import Mark, Range
from leash.spark.streams.positions import Positions
from leash.spark.streams.settings import StreamSettings


def batch_ranges(settings: StreamSettings) -> list[Range]:
    links = Links(settings.place)
    positions = Positions(settings, links)
    begins, grants, marks = {}, {}, {}
    try:
        names = positions.names()
        positions.check(names)
        for name in names:
            bounds = positions.bounds(name)
            if bounds is None:
                continue
            begins[name] = positions.start(name, bounds)
            count = positions.end(name, bounds, begins[name]) - begins[name]
            if count:
                grants[name] = count
            if bounds.last is not None:
                marks[name] = Mark.of(bounds.last)
    finally:
        links.close()
    return cut_ranges(begins, grants, settings, marks)
