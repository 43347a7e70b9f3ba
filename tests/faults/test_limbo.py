"""Out of limbo, and past it: messages that came back too often are begun, parked or dead-lettered."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from leash import Consumer, Message
from leash.amqp import Channel, Outgoing, Properties, Publisher, connect, delivery_limit
from leash.amqp.delivery_limit import declare_limbo, limbo_queue
from leash.amqp.last_acks import settled
from leash.amqp.topology import declare_queue, state
from leash.broker import Broker
from leash.consumer import dead_queue as dead
from leash.consumer import failures, rescuing, upkeep
from leash.consumer.outbox import Outbox
from leash.consumer.raw_delivery import Raw
from leash.consumer.rescuing import Limbo
from leash.errors import NotFound, Rejected
from leash.units import SECOND
from tests.admin import add_user
from tests.conftest import StalledLog
from tests.consumer.kit import publish, until
from tests.faults.queues import empty, fill, parked, until_it_comes


@pytest.mark.parametrize("style", ["threads", "async", "batch", "async batch"])
def test_a_stop_while_a_message_is_taken_out_of_limbo(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """It counts as begun, up to RabbitMQ 4.2 even if it is given back: so it is begun."""
    declare_queue(channel, "q", kind="quorum")
    declare_limbo(channel.connection, "q")
    publish(channel, limbo_queue("q"), [b"1", b"2"])
    began: list[bytes] = []
    consumer = Consumer(uri, ["q"], drain=20)

    def work(message: Message | list[Message]) -> None:
        began.extend([each.body for each in message] if isinstance(message, list) else [message.body])

    async def work_async(message: Message | list[Message]) -> None:
        work(message)

    decorate = consumer.batch_handler(10, 0.1) if "batch" in style else consumer.handler
    decorate(work_async if "async" in style else work)
    fetch = Limbo._fetch

    def stop_meanwhile(limbo: Limbo, queue: str) -> Raw | None:
        raw = fetch(limbo, queue)
        if raw is not None:
            limbo._engine.stop()
        return raw

    monkeypatch.setattr(Limbo, "_fetch", stop_meanwhile)
    consumer.start()
    until(lambda: consumer.session.left)
    assert consumer.stop()
    assert began == [b"1"]
    until(lambda: _ready(channel, limbo_queue("q")) == 1)


@pytest.mark.parametrize(
    ("may", "late"),
    [
        ("read only", False),
        ("configure its queue", False),
        ("configure its queue", True),
        ("configure nothing", False),
    ],
)
def test_whoever_may_not_rescue_handles_what_came_back(
    broker: Broker,
    uri: str,
    channel: Channel,
    dropped: Callable[[], int],
    may: str,
    late: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a limbo that cannot be declared they go to the end of the queue, whenever that shows."""
    if late:
        monkeypatch.setattr(failures, "AT_START", 0)
    others = fill(channel, "q", poison=None, count=12)
    for _ in range(11):
        with channel.connection.channel() as taker:
            taken = [until_it_comes(taker, "q") for _ in others]
            assert len(set(taken)) == len(others)
    configure, write = "^q$" if may == "configure its queue" else "^$", "^$" if may == "read only" else ".*"
    consumer = Consumer(add_user(broker, uri, configure, write), ["q"], retry=None, on_exhausted="discard")
    seen: set[str] = set()
    consumer.handler(lambda message: seen.add(f"q {message.body.decode()}"))
    with consumer:
        until(lambda: seen == others)
        until(lambda: not consumer.stats().queues["q"].unsettled)
        rescued = consumer.stats().queues["q"].counts.get("rescued", 0)
    assert rescued == (0 if may == "read only" else len(others))
    assert empty(channel, ["q"])
    assert dropped() == 0


@pytest.mark.parametrize("how", ["reject", "exhausted", "unknown"])
def test_what_is_rejected_out_of_limbo_gets_to_the_dead_letter_exchange(
    uri: str, channel: Channel, dropped: Callable[[], int], how: str
) -> None:
    """Limbo itself has none."""
    declare_queue(channel, "dlq")
    routes = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    declare_queue(channel, "q", kind="quorum", arguments={} if how == "unknown" else routes)
    publish(channel, "q", [b"it"])
    for _ in range(11):
        with channel.connection.channel() as taker:
            until(lambda by=taker: by.get("q") is not None)  # type: ignore[misc]
    began: list[bytes] = []
    consumer = Consumer(uri, ["q"], retry=None, on_exhausted="reject")

    @consumer.handler
    def work(message: Message) -> None:
        began.append(message.body)
        if how == "exhausted":
            raise ValueError
        assert message.reject()

    with consumer:
        target = "leash.dead.q" if how == "unknown" else "dlq"
        until(lambda: began == [b"it"])
        until(lambda: _ready(channel, target) == 1)
    assert dropped() == 0


def test_a_channel_into_limbo_that_ended_before_anybody_watched_it(uri: str, channel: Channel) -> None:
    declare_queue(channel, "q", kind="quorum")
    seen: list[bytes] = []
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda message: seen.append(message.body))
    with consumer:
        engine = consumer.session.engine
        assert engine is not None
        assert engine.limbo is not None
        engine.limbo._open("q").channel.close()
        publish(channel, limbo_queue("q"), [b"it"])
        engine.limbo.seen("q", 1)
        until(lambda: seen == [b"it"])


def test_a_message_that_is_never_done_holds_up_the_others_in_limbo_just_once(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for as long again before each of them."""
    monkeypatch.setattr(rescuing, "ALONE", 10 * SECOND)
    declare_queue(channel, "q", kind="quorum")
    declare_limbo(channel.connection, "q")
    others = [b"%d" % number for number in range(20)]
    publish(channel, limbo_queue("q"), [b"for ever", *others])
    began: list[bytes] = []
    end = threading.Event()
    consumer = Consumer(uri, ["q"], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        began.append(message.body)
        if message.body == b"for ever":
            end.wait(120)

    with consumer:
        until(lambda: began == [b"for ever", *others])
        end.set()


def test_nobody_begins_with_what_was_rescued_before_its_original_is_acked(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should it take the process down, there would be two of it."""
    declare_queue(channel, "q", kind="quorum")
    publish(channel, "q", [b"it"])
    for _ in range(11):
        with channel.connection.channel() as taker:
            until_it_comes(taker, "q")
    began, early = threading.Event(), []
    write = Outbox.write

    def late(outbox: Outbox, data: bytes | None) -> None:
        if data is not None and threading.current_thread().name == "leash-republisher":
            early.append(began.wait(1))  # as if it lost the processor here
        write(outbox, data)

    monkeypatch.setattr(Outbox, "write", late)
    monkeypatch.setattr(upkeep, "TICK", 60.0)  # nobody else sends the ack meanwhile
    consumer = Consumer(uri, ["q"])
    consumer.handler(lambda _: began.set())
    with consumer:
        until(began.is_set)
    assert early == [False]


def test_what_cannot_be_dead_lettered_out_of_limbo_is_parked_and_holds_up_nothing(
    uri: str, channel: Channel
) -> None:
    declare_queue(channel, "q", kind="quorum", arguments={"x-dead-letter-exchange": "nowhere"})
    declare_limbo(channel.connection, "q")
    with Publisher(channel.connection) as publisher:  # as rescued: their routing key is that of the queue
        told = Properties(headers={"x-leash-tries": 0, "x-leash-rescued": 1, "x-leash-routing-key": "q"})
        bodies = [b"0", b"1", b"2", b"3"]
        publisher.publish(Outgoing(body, "", limbo_queue("q"), told) for body in bodies)
    times: Counter[bytes] = Counter()
    consumer = Consumer(uri, ["q"], drain=20)

    @consumer.handler
    def work(message: Message) -> None:
        times[message.body] += 1
        if message.body in (b"0", b"2"):
            assert message.reject()
        elif times[message.body] < 3:
            assert message.requeue()

    consumer.start()
    until(lambda: times == {b"0": 1, b"1": 3, b"2": 1, b"3": 3}, what=str(times))
    until(lambda: _ready(channel, "leash.dead.q") == 2)
    assert consumer.stop()
    found = parked(channel, "q")
    assert {body for body, _ in found} == {b"0", b"2"}
    assert all("no exchange 'nowhere'" in reason for _, reason in found)
    assert empty(channel, ["q", limbo_queue("q")])


@pytest.mark.parametrize("how", ["look", "send back", "pick"])
@pytest.mark.parametrize("limit", [None, 3])
def test_parked_messages_stay_however_often_they_are_looked_at(
    uri: str, channel: Channel, dropped: Callable[[], int], how: str, limit: int | None
) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    declare_queue(channel, "q", arguments=full)
    publish(channel, "q", [b"full"])
    declare_queue(
        channel, "leash.dead.q", kind="quorum", arguments={"x-delivery-limit": limit} if limit else {}
    )
    publish(channel, "leash.dead.q", [b"0", b"1", b"2", b"3"])
    with connect(uri) as publishing:
        for _ in range(30):
            until(lambda: _ready(channel, "leash.dead.q") == 4)
            if how == "look":
                found = dead.look(channel.connection, "q", 10)
                assert sorted(each.body for each in found) == [b"0", b"1", b"2", b"3"]
            elif how == "send back":
                with pytest.raises(Rejected, match="4 stay parked"):
                    dead.send_back(channel.connection, publishing, "q")
            else:
                keys = [key for key, _ in dead.look_keyed(channel.connection, "q", 2)]
                until(lambda: _ready(channel, "leash.dead.q") == 4)
                with pytest.raises(Rejected, match="others stay parked"):
                    dead.pick(channel.connection, publishing, "q", keys, retry=True)
    until(lambda: _ready(channel, "leash.dead.q") == 4)
    assert dropped() == 0


def test_picking_for_a_queue_that_is_gone_takes_nothing(uri: str, channel: Channel) -> None:
    """What is taken and comes back again and again is dropped in the end."""
    declare_queue(channel, "leash.dead.q", kind="quorum")
    publish(channel, "leash.dead.q", [b"it"])
    ((key, _),) = dead.look_keyed(channel.connection, "q", 1)
    until(lambda: _ready(channel, "leash.dead.q") == 1)
    with connect(uri) as publishing, pytest.raises(NotFound, match="nothing was sent back"):
        dead.pick(channel.connection, publishing, "q", [key], retry=True)
    until(lambda: _ready(channel, "leash.dead.q") == 1)
    came = channel.get("leash.dead.q")
    assert came is not None
    assert delivery_limit.delivery_count(came.properties) <= 1  # the look


@pytest.mark.parametrize("full", [False, True])
def test_what_was_sent_back_is_parked_no_more(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch, stalled_log: StalledLog, full: bool
) -> None:
    """Each message is got on its own, and acked on its own, too, as a quorum queue sees it."""
    room = {"x-max-length": 60, "x-overflow": "reject-publish"} if full else {}
    declare_queue(channel, "q", arguments=room)
    declare_queue(channel, "leash.dead.q", kind="quorum")
    bodies = [b"%d" % number for number in range(80)]
    publish(channel, "leash.dead.q", bodies)
    send = Publisher.publish

    def then_stall(self: Publisher, messages: Iterable[Outgoing]) -> None:
        stalled_log.end()
        try:
            send(self, messages)
        finally:
            stalled_log.begin()

    monkeypatch.setattr(Publisher, "publish", then_stall)
    monkeypatch.setattr(dead, "settled", stalled_log.ends_with(settled))
    with connect(uri) as publishing:
        if full:
            with pytest.raises(Rejected, match="20 stay parked"):
                dead.send_back(channel.connection, publishing, "q")
        else:
            assert dead.send_back(channel.connection, publishing, "q") == 80
    stalled_log.end()
    assert _ready(channel, "q") == (60 if full else 80)
    left = 20 if full else 0
    until(lambda: _ready(channel, "leash.dead.q") == left)
    assert len(dead.look(channel.connection, "q", 100)) == left


def _ready(channel: Channel, queue: str) -> int:
    try:
        with channel.connection.channel() as looking:
            return state(looking, queue).ready
    except NotFound:  # not declared before it is needed
        return 0
