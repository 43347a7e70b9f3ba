"""When a silent node is doubted, when another one is asked, and when we move."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp.base import Frame as Method

from leash import Consumer
from leash.amqp.channel import Channel, Reply
from leash.amqp.topology import declare_queue
from leash.amqp.uri import Uri, parse
from leash.consumer import cut_off_node
from leash.consumer.cut_off_node import AGAIN, DOUBT, LONGEST, PATIENCE, QUIET, Lookout, Question
from leash.consumer.link import Link
from tests.consumer.kit import publish, running, until

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

    def ask_proof(self, _: object) -> Reply:
        self.asked += 1
        self.answers = queue.SimpleQueue()
        channel = SimpleNamespace(closed=False, deliveries=lambda _: None)
        return Reply(cast(Any, channel), "consume", self.answers)

    def end_proof(self, _: object) -> None:
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
        for seeker in self.lookout._seekers:
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


@pytest.mark.parametrize("good", [{"b"}, {"c"}, set()])
def test_one_that_does_not_answer_is_asked_at_the_other_nodes(good: set[str]) -> None:
    world, link = World(good), FakeLink()
    asked = silent_from(world, link, 0.0)
    assert world.look(asked + DOUBT - 0.1, link) is None
    assert world.asked == []
    assert world.look(asked + DOUBT, link) is None  # asks
    assert world.look(asked + DOUBT + 0.1, link) == next(((host, 5672) for host in good), None)
    assert sorted(world.asked) == ["b", "c"]


def test_a_node_that_does_not_answer_holds_up_no_other() -> None:
    link, answer = FakeLink(), threading.Event()
    lookout = Lookout(THREE, lambda uri, _: uri.hosts[0][0] == "c" or answer.wait(60))
    lookout.connected(0.0)
    try:
        for now in (0.0, QUIET, QUIET + DOUBT):
            assert lookout.look(now, HERE, [cast(Link, link)]) is None
        until(lambda: lookout.look(QUIET + DOUBT, HERE, [cast(Link, link)]) == ("c", 5672))
    finally:
        answer.set()


def test_nodes_that_come_back_are_asked_again_soon() -> None:
    """Below ten seconds, though they took their time to say no."""
    world, link = World(set()), FakeLink()
    again = silent_from(world, link, 0.0) + DOUBT
    world.look(again, link)
    said_no = again + PATIENCE
    world.look(said_no, link)
    world.good = {"b"}
    world.look(said_no + AGAIN, link)
    assert world.look(said_no + AGAIN, link) == ("b", 5672)
    assert said_no + AGAIN < 8


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
    assert world.look(asked + DOUBT + 1, link) is None
    assert link.ended == 1
    assert world.asked == []


def test_messages_that_come_end_the_doubt_and_the_answer_is_awaited_all_the_same() -> None:
    world, link = World({"b"}), FakeLink()
    asked = silent_from(world, link, 0.0)
    link.ledger.delivered += 1
    assert world.look(asked + DOUBT, link) is None
    assert (world.asked, link.ended) == ([], 0)
    link.answer()
    assert world.look(asked + DOUBT + 0.1, link) is None
    assert (world.asked, link.ended) == ([], 1)


def test_a_lost_link_ends_the_doubt_and_so_does_a_new_connection() -> None:
    for end in ("lost", "connected"):
        world, link = World({"b"}), FakeLink()
        asked = silent_from(world, link, 0.0)
        if end == "lost":
            link.alive = False
        else:
            world.lookout.connected(asked)
        assert world.look(asked + DOUBT, link) is None
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


def test_it_is_asked_on_another_channel_and_costs_no_message(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was cut off leaves the question open, and the channel that it was asked on stands still."""
    monkeypatch.setattr(cut_off_node, "QUIET", 0.05)
    consumes: list[Channel] = []
    ask = Channel.ask

    def noted(by: Channel, request: Method, *replies: type[Method]) -> Reply:
        if request.name == "Basic.Consume":
            consumes.append(by)
        return ask(by, request, *replies)

    monkeypatch.setattr(Channel, "ask", noted)
    declare_queue(channel, "q", kind="quorum")
    place = parse(uri)
    seen: list[bytes] = []
    consumer = Consumer(replace(place, hosts=place.hosts * 2), ["q"])
    consumer.handler(lambda message: seen.append(message.body))
    bodies = [b"%d" % number for number in range(500)]
    with running(consumer):
        until(lambda: len(consumes) > 3)
        for body in bodies:
            publish(channel, "q", [body])
        until(lambda: len(seen) >= len(bodies))
        own, *questions = consumes  # a stop asks, too
    assert sorted(seen) == sorted(bodies)
    assert consumer.stats().reconnects == 0
    assert own not in questions
    assert len(set(questions)) < len(questions)
