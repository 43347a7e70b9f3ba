"""Budgets in a rehearsal: the same flow, with a bucket in virtual time in place of the broker's wheel."""

from __future__ import annotations

from leash import Budget, Consumer, Message, Queue
from leash.testing import Rehearsal


def test_a_rate_over_two_queues_holds_in_virtual_time_and_shares_by_quantum() -> None:
    sms = Budget("sms", rate=10, burst=5)
    consumer = Consumer(
        "amqp://localhost",
        [Queue("gold", quantum=3, budget=sms), Queue("free", budget=sms), "other"],
        workers=2,
    )

    @consumer.handler
    def handle(_: Message) -> None: ...

    with Rehearsal(consumer) as rehearsal:
        for queue in ("gold", "free"):
            rehearsal.publish(queue, [b"x"] * 60)
        rehearsal.publish("other", [b"x"] * 20)
        rehearsal.advance(5)
        counts = {name: len(rehearsal.acked(name)) for name in ("gold", "free", "other")}
        starts = [each.at for each in rehearsal.handled if each.queue != "other"]
    assert counts["other"] == 20
    assert 50 <= len(starts) <= 55
    assert abs(counts["gold"] - 3 * counts["free"]) <= 4
    for index, at in enumerate(starts):
        assert index + 1 <= 5 + 10 * at + 1e-6


def test_no_more_at_once_than_the_budget_says() -> None:
    consumer = Consumer("amqp://localhost", ["pdf"], workers=5, budget=Budget("pdf", at_once=2))
    running = most = 0

    @consumer.handler
    def handle(_: Message) -> None: ...

    with Rehearsal(consumer, takes=1.0) as rehearsal:
        rehearsal.publish("pdf", [b"x"] * 10)
        rehearsal.run()
        spans = sorted(
            [(each.at, 1) for each in rehearsal.handled] + [(each.at + 1.0, -1) for each in rehearsal.handled]
        )
        for _, step in spans:
            running += step
            most = max(most, running)
    assert most == 2
    assert rehearsal.now >= 5.0


def test_a_message_takes_what_its_header_says() -> None:
    budget = Budget("llm", rate=100, burst=100, cost="header:tokens")
    consumer = Consumer("amqp://localhost", [Queue("q", budget=budget)])

    @consumer.handler
    def handle(_: Message) -> None: ...

    with Rehearsal(consumer) as rehearsal:
        rehearsal.publish("q", [b"a", b"b", b"c"], headers={"tokens": 50})
        rehearsal.publish("q", b"large", headers={"tokens": 300})
        rehearsal.publish("q", b"last", headers={"tokens": 1})
        rehearsal.run()
        at = {each.body: each.at for each in rehearsal.handled}
    assert at[b"b"] < 0.1
    assert 0.5 <= at[b"c"] < 0.7
    assert 1.5 <= at[b"large"] < 1.7  # when the whole burst is there
    assert 3.5 <= at[b"last"] < 3.7  # when the rest of it is paid
