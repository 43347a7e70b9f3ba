"""`leash plan` as a Spark job: batches of settings for every core, one simulation per setting."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leash.lab.figures import Progress, silent
from leash.lab.plan import Outcome, Plan, Setting, try_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 32
"""Batches per core: many short ones, so that no core is idle for long at the end."""


def session(master: str, name: str = "leash plan") -> SparkSession:
    """A quiet session; an existing one of the same process is used as it is."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
    }
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the one that has leash
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _hushed():
        return builder.getOrCreate()


@contextmanager
def _hushed() -> Iterator[None]:
    """Discard what a JVM prints when it starts: it would spoil the table."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def sweep(spark: SparkSession, plan: Plan, progress: Progress = silent) -> list[Outcome]:
    """Try every setting, on all cores of the master."""
    context = spark.sparkContext
    settings = list(plan.settings())
    batches = deal(settings, max(1, min(len(settings), BATCHES * context.defaultParallelism)))
    job = context.parallelize(batches, len(batches)).flatMap(_tried(plan))
    with _Watched(context, len(batches), progress):
        outcomes: list[Outcome] = job.collect()
    progress(1.0)
    return sorted(outcomes)


def deal(settings: Sequence[Setting], hands: int) -> list[list[Setting]]:
    """Deal settings like cards, so that every batch has its share of costly ones."""
    return [list(settings[start::hands]) for start in range(hands)]


def _tried(plan: Plan) -> Callable[[list[Setting]], Iterator[Outcome]]:
    return lambda batch: (try_out(plan, setting) for setting in batch)


class _Watched:
    """Reports finished batches while a job runs."""

    def __init__(self, context: Any, batches: int, progress: Progress) -> None:
        self._context, self._batches, self._progress = context, batches, progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="plan progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        tracker = self._context.statusTracker()
        while not self._over.wait(0.2):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    self._progress(min(1.0, info.numCompletedTasks / self._batches))
