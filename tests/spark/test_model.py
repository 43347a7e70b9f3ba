"""The protocol under every interleaving: two attempts, the driver, its restart, garbage collection and
crashes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from leash.errors import Fenced
from leash.spark.driver import settling
from leash.spark.offsets import Plan, Seen, Split, splits_of
from leash.spark.staging import cleanup, fence, seals
from leash.spark.staging.chunks import read_chunks
from leash.spark.staging.files import Files
from leash.spark.staging.seals import Seal
from leash.spark.task import attempt, dedup
from leash.spark.task.attempt import sealed

from .model import Lot, MemoryFiles, World, explore

BATCH = Plan(run="run", seq=1, nonce="a", queues=("q",), splits=((0, 1),))
NEXT = Plan(run="run", seq=2, nonce="b")
KNOWN = replace(BATCH, seen=())
LATER = replace(NEXT, queues=("q",), splits=((0, 2),), seen=(Seen(BATCH.folder, 0, 1),))
MESSAGES = [b"m1", b"m2"]
Row = tuple[bytes, bool]


class Loss(AssertionError):
    pass


@pytest.fixture(autouse=True)
def _attempts_have_their_actors_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Names:
        @staticmethod
        def token_hex(_: int) -> str:
            return threading.current_thread().name

    class Forgetful(dict[str, tuple[set[str], set[bytes]]]):
        """Every attempt is a process of its own, and shares no memory with others."""

        def __contains__(self, _: object) -> bool:
            return False

    monkeypatch.setattr(attempt, "secrets", Names)
    monkeypatch.setattr(dedup, "_batch", Forgetful())


class Scene:
    """One batch of one split, attempted by several; the driver settles it once Spark is done with it,
    and commits."""

    batch = BATCH

    def __init__(self, *, action: bool) -> None:
        self.action = action
        self.world = World()
        self.output: list[Row] | None = None
        self.returned: list[list[Row]] = []
        world = self.world
        world.queue.ready = [(body, False) for body in MESSAGES]
        cleanup.begin(world.files, BATCH.run)
        world.add("first", lambda: self.attempt("first"))
        if action:
            world.add("second", lambda: self.attempt("second"))
            world.add("retry", lambda: self.attempt("retry"), self.both_lost, mortal=False)
        world.add("driver", self.drive, self.batch_ended)
        world.add("driver again", self.drive, lambda: self.status("driver") == "crashed", mortal=False)

    def status(self, name: str) -> str:
        return next(actor.status for actor in self.world.actors if actor.name == name)

    def both_lost(self) -> bool:
        return self.output is None and all(
            self.status(n) in ("crashed", "failed") for n in ("first", "second")
        )

    def batch_ended(self) -> bool:
        return self.output is not None if self.action else True

    def attempt(self, name: str) -> None:
        threading.current_thread().name = name
        (split,) = splits_of(self.batch)
        seal = sealed(split, self.world.files, lambda _: self.world.queue.taker(name))
        rows = self.rows(split, seal)
        self.returned.append(rows)
        if self.action and self.output is None:
            self.output = rows
            self.world.facts.append(f"output {rows}")

    def rows(self, split: Split, seal: Seal) -> list[Row]:
        batches = list(read_chunks(self.world.files, split.seal_path, seal, fail_on_data_loss=True))
        return [
            row
            for batch in batches
            for row in zip(
                batch.column("body").to_pylist(), batch.column("redelivered").to_pylist(), strict=True
            )
        ]

    def drive(self) -> None:
        files = self.world.files
        found = settling.settle(files, BATCH)
        if "settled" not in self.world.facts:
            self.world.facts.append("settled")
            self.world.facts.append(f"settled {found.seals[0].attempt}")
        cleanup.commit(files, BATCH)
        settling.settle(files, NEXT)
        cleanup.commit(files, NEXT)


def check(scene: Scene, later: list[Row] | None = None) -> None:
    """At the end: nothing lost, no message twice without its flag, every reader saw the same."""
    output = scene.output or []
    left = scene.world.queue.ready
    assert not scene.world.queue.held
    for body in MESSAGES:
        if body not in [b for b, _ in output + (later or []) + left]:
            raise Loss(body)
        assert (output + (later or []) + left).count((body, False)) <= 1
    # A void seal reads as no rows, and comes only once the batch is over.
    if scene.action:
        assert all(rows in (output, []) for rows in scene.returned)


def _with_action() -> Scene:
    return Scene(action=True)


def _without_action() -> Scene:
    return Scene(action=False)


def explore_scene(
    make: Callable[[], Scene], crashes: int, verdict: Callable[[Scene], None] = check
) -> tuple[int, int]:
    scenes: dict[int, Scene] = {}

    def build() -> World:
        scene = make()
        scenes.clear()
        scenes[id(scene.world)] = scene
        return scene.world

    return explore(build, crashes, lambda world: verdict(scenes[id(world)]))


def test_nothing_is_lost_or_doubled_when_two_attempts_the_driver_and_a_crash_interleave_in_any_way() -> None:
    states, ends = explore_scene(_with_action, crashes=1)
    assert states > 1000
    assert ends > 10


def test_an_attempt_that_outlives_a_batch_without_action_takes_nothing_once_the_batch_is_settled() -> None:
    losses = itertools.count()

    def verdict(scene: Scene) -> None:
        try:
            check(scene)
        except Loss:
            # The one hole, documented: sealed after Spark was done with the batch and before the driver
            # settled it.
            assert {"settled first", "settled second"} & set(scene.world.facts)
            next(losses)

    explore_scene(_without_action, crashes=0, verdict=verdict)


def test_the_model_finds_the_loss_when_the_fence_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "check_seal", lambda *_: None)
    with pytest.raises(Loss):
        explore_scene(_with_action, crashes=0)


class Repeat(AssertionError):
    pass


class Remembered(Scene):
    """With deduplication. A later batch takes what came back, and knows the rows of the first."""

    batch = KNOWN

    def __init__(self) -> None:
        super().__init__(action=True)
        self.later: list[Row] = []
        actors = {actor.name: actor for actor in self.world.actors}
        (split,) = splits_of(KNOWN)
        actors["second"].ready = lambda: split.seal_path in self.world.files.data  # one that only reads
        self.world.actors = [actors[name] for name in ("first", "second", "driver")]

    def drive(self) -> None:
        files = self.world.files
        settling.settle(files, KNOWN)
        cleanup.commit(files, KNOWN)
        (split,) = splits_of(LATER)
        seal = sealed(split, files, lambda _: self.world.queue.taker("driver"))
        self.later = self.rows(split, seal)
        settling.settle(files, LATER)
        cleanup.commit(files, LATER)
        if "later" not in self.world.facts:
            self.world.facts.append("later")


def no_repeats(scene: Scene) -> None:
    """At the end, with what a last batch would still take: every message once."""
    assert isinstance(scene, Remembered)
    check(scene, scene.later)
    rows = [body for body, _ in (scene.output or []) + scene.later]
    known = seals.hashes_of(seals.seals_in(scene.world.files, BATCH.folder))
    known |= seals.hashes_of(seals.seals_in(scene.world.files, LATER.folder))
    for body, flagged in scene.world.queue.ready:
        digest = dedup.message_hash("q", Lot([(body, flagged)]).properties[0], body)
        if not (flagged and digest in known):
            rows.append(body)
    for body in MESSAGES:
        if rows.count(body) > 1:
            raise Repeat(body)


def explore_remembered() -> tuple[int, int]:
    return explore_scene(Remembered, crashes=0, verdict=no_repeats)


def test_with_deduplication_nothing_is_repeated_whoever_reads_a_seal_before_its_maker_acks() -> None:
    states, ends = explore_remembered()
    assert states > 300
    assert ends > 3


def test_the_model_finds_the_repeat_when_a_maker_that_comes_too_late_takes_its_seal_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check_fence(files: Files, split: Split) -> None:
        try:
            real(files, split)
        except Fenced:
            files.delete(split.seal_path)
            raise

    real = fence.check_fence
    monkeypatch.setattr(fence, "check_seal", check_fence)
    with pytest.raises((Repeat, Loss)):
        explore_remembered()


def test_the_model_finds_the_loss_when_unread_splits_get_no_void_seal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seals, "void_seal", lambda *_: Seal(attempt="void", void=True))

    def verdict(scene: Scene) -> None:
        if not {"settled first", "settled second"} & set(scene.world.facts):
            check(scene)

    with pytest.raises(Loss):
        explore_scene(_without_action, crashes=0, verdict=verdict)


def test_the_model_finds_the_loss_when_acking_comes_before_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    real = seals.place_seal

    def late(files: Files, path: str, seal: Seal) -> Seal:
        assert isinstance(files, MemoryFiles)
        files.world.queue.held.pop(threading.current_thread().name, None)
        return real(files, path, seal)

    monkeypatch.setattr(seals, "place_seal", late)
    with pytest.raises(Loss):
        explore_scene(_with_action, crashes=1)
