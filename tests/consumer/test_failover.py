"""When a silent node is doubted, when another one is asked, and when we move."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leash.amqp.channel import Reply
from leash.amqp.uri import Uri, parse
from leash.consumer.failover import LONGEST, PATIENCE, QUIET, Lookout, Question
from leash.consumer.link import Link

THREE = parse("amqp://a,b,c")
HERE = "a:5672"


class FakeLink:
    """A link whose broker answers when it is told to."""

    def __init__(self, name: str = "q", delivered: int = 0) -> None:
        self.queue = name
        self.alive = True
        self.idle_for_proof = True
        self.ledger = SimpleNamespace(delivered=delivered)
        self.asked = 0
        self.ended = 0
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask_proof(self) -> Reply:
        self.asked += 1
        self.answers = queue.SimpleQueue()
        return Reply(cast(Any, None), "consume", self.answers)

    def end_proof(self) -> None:
        self.ended += 1

    def answer(self) -> None:
        self.answers.put("granted")


class World:
    def __init__(self, good: set[str], uri: Uri = THREE) -> None:
        self.good = good
        self.asked: list[str] = []
        self.lookout = Lookout(uri, self._ask)
        self.lookout.connected(0.0)

    def _ask(self, uri: Uri, _: str) -> bool:
        self.asked.append(uri.hosts[0][0])
        return uri.hosts[0][0] in self.good

    def look(self, now: float, *links: FakeLink, opening: tuple[Question, ...] = ()) -> object:
        found = self.lookout.look(now, HERE, cast(list[Link], list(links)), opening)
        if (seeker := self.lookout._seeker) is not None:
            seeker.join()  # one that is listed no more may still be alive
        return found


def silent_from(world: World, link: FakeLink, begin: float) -> float:
    """Look until a question is out; the time of it."""
    world.look(begin, link)
    world.look(begin + QUIET, link)
    assert link.asked == 1
    return begin + QUIET


def test_while_messages_come_nobody_is_asked() -> None:
    world, link = World({"b"}), FakeLink()
    for now in range(100):
        link.ledger.delivered += 1
        assert world.look(float(now), link) is None
    assert not link.asked


def test_a_silent_queue_that_answers_is_asked_now_and_then_and_no_other_node_is() -> None:
    world, link = World({"b"}), FakeLink()
    for tenth in range(600):
        assert world.look(tenth / 10, link) is None
        if link.asked > link.ended:
            link.answer()
    assert link.asked == link.ended
    assert 60 / QUIET / 2 < link.asked < 60 / QUIET + 1
    assert world.asked == []


@pytest.mark.parametrize(("good", "moves"), [({"b", "c"}, ("b", 5672)), ({"c"}, ("c", 5672)), (set(), None)])
def test_one_that_does_not_answer_is_asked_at_the_other_nodes(good: set[str], moves: object) -> None:
    world, link = World(good), FakeLink()
    asked = silent_from(world, link, 0.0)
    assert world.look(asked + PATIENCE - 0.1, link) is None
    assert world.asked == []
    assert world.look(asked + PATIENCE, link) is None  # asks
    assert world.look(asked + PATIENCE + 0.1, link) == moves
    assert world.asked == ["b"] if "b" in good else ["b", "c"]


def test_while_no_node_answers_questions_get_rare() -> None:
    world, link = World(set()), FakeLink()
    silent_from(world, link, 0.0)
    for tenth in range(6000):
        assert world.look(10 + tenth / 10, link) is None
    assert 8 <= len(world.asked) / 2 <= 6 + 2 * 600 / LONGEST  # up to half of a wait is left out at random


def test_an_answer_that_comes_late_ends_the_doubt() -> None:
    world, link = World({"b"}), FakeLink()
    asked = silent_from(world, link, 0.0)
    link.answer()
    assert world.look(asked + PATIENCE + 1, link) is None
    assert link.ended == 1
    assert world.asked == []


def test_a_lost_link_ends_the_doubt_and_so_does_a_new_connection() -> None:
    for end in ("lost", "connected"):
        world, link = World({"b"}), FakeLink()
        asked = silent_from(world, link, 0.0)
        if end == "lost":
            link.alive = False
        else:
            world.lookout.connected(asked)
        assert world.look(asked + PATIENCE, link) is None
        assert world.asked == []


def test_a_link_without_room_is_not_asked_and_the_busiest_of_the_others_is() -> None:
    world = World({"b"})
    full, idle, busy = FakeLink("full", 9), FakeLink("idle", 1), FakeLink("busy", 5)
    full.idle_for_proof = False
    world.look(0.0, full, idle, busy)
    world.look(QUIET, full, idle, busy)
    assert (full.asked, idle.asked, busy.asked) == (0, 0, 1)


def test_a_consumer_that_is_not_granted_is_doubt_enough() -> None:
    world, link = World({"b"}), FakeLink()
    question = Question(cast(Link, link), Reply(cast(Any, None), "consume", link.answers), 0.0)
    world.look(0.0, opening=(question,))
    world.look(QUIET, opening=(question,))
    world.look(QUIET + 0.1, opening=(question,))
    assert world.look(QUIET + 0.2, opening=(question,)) == ("b", 5672)
    assert not link.asked


def test_with_one_host_there_is_nowhere_to_go() -> None:
    world, link = World({"a"}, parse("amqp://a")), FakeLink()
    for now in range(100):
        assert world.look(float(now), link) is None
    assert not link.asked
