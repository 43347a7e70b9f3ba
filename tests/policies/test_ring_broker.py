"""The ring against a real broker: every single message lands where `route_many` said that it would."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from leash.amqp import Channel, Connection, Outgoing, Publisher, connect, topology
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.errors import PreconditionFailed
from leash.policies.ring import HashRing
from leash.policies.ring.fields import Field
from leash.policies.ring.hashring import KEEPS_ITS_RING

COUNT = 20_000
LETTERS = {
    "longstr": "S",
    "binary": "x",
    "bool": "t",
    "byte": "b",
    "unsignedbyte": "B",
    "short": "s",
    "unsignedshort": "u",
    "signedint": "I",
    "unsignedint": "i",
    "long": "l",
    "timestamp": "T",
    "double": "d",
    "float": "f",
    "decimal": "D",
    "table": "F",
    "array": "A",
    "void": "V",
}
PACKED = {
    "t": "?",
    "b": "b",
    "B": "B",
    "s": "h",
    "u": "H",
    "I": "i",
    "i": "I",
    "l": "q",
    "T": "Q",
    "d": "d",
    "f": "f",
}


class Exchange:
    """A hash exchange on the broker, and the ring that it should be."""

    def __init__(self, connection: Connection, name: str, ring: HashRing) -> None:
        self.channel = connection.channel()
        self.publisher = Publisher(connection)
        self.name = name
        self.ring = ring
        kind, _, what = ring.by.partition(":")
        arguments = {f"hash-{kind}": what} if what else {}
        topology.declare_exchange(self.channel, name, kind="x-consistent-hash", arguments=arguments)
        for queue, weight in ring.bindings:
            self._bind(queue, weight)

    def bind(self, queue: str, weight: int) -> None:
        self._bind(queue, weight)
        self.ring = self.ring.bind(queue, weight)

    def unbind(self, queue: str) -> None:
        weight = dict(self.ring.bindings)[queue]
        topology.unbind_queue(self.channel, queue, self.name, str(weight))
        self.ring = self.ring.unbind(queue)

    def _bind(self, queue: str, weight: int) -> None:
        topology.declare_queue(self.channel, queue)
        topology.bind_queue(self.channel, queue, self.name, str(weight))

    def check(self, keys: Sequence[Any], message: Callable[[Any], tuple[str, bytes]]) -> None:
        """Publish one numbered message for every key; compare where each landed with where it should."""
        addressed = ((i, *message(key)) for i, key in enumerate(keys))
        self.publisher.publish(Outgoing(b"%d" % i, self.name, key, raw) for i, key, raw in addressed)
        landed = read(self.channel, self.ring.queues, len(keys))
        expected = self.ring.route_many(keys)
        wrong = [(keys[i], landed[i], expected[i]) for i in range(len(keys)) if landed[i] != expected[i]]
        assert not wrong, f"{len(wrong)} of {len(keys)}: {wrong[:5]}"
        for i in range(0, len(keys), 50):
            assert self.ring.route(keys[i]) == landed[i]


def read(channel: Channel, queues: Iterable[str], count: int) -> dict[int, str]:
    """Which queue holds which number, once all have been seen."""
    tags = {channel.consume(queue, no_ack=True): queue for queue in queues}
    landed: dict[int, str] = {}
    while len(landed) < count:
        batch = channel.deliveries(timeout=60)
        assert batch is not None, f"{count - len(landed)} messages are in no queue"
        landed.update(dict.fromkeys(map(int, batch.bodies), tags[batch.consumer_tag]))
    for tag in tags:
        channel.cancel(tag)
    return landed


def by_key(key: bytes) -> tuple[str, bytes]:
    return key.decode("utf-8", "surrogateescape"), b"\0\0"


def by_header(key: Any) -> tuple[str, bytes]:
    """No header at all, or a table in which it may be missing among others."""
    if key is None:
        return "same", b"\0\0"
    table = b"\x05otherV" + (b"\x01h" + encode(key) if key != ABSENT else b"")
    return "same", b"\x20\0" + struct.pack(">I", len(table)) + table


def by_property(flag: int) -> Callable[[Any], tuple[str, bytes]]:
    def message(key: Any) -> tuple[str, bytes]:
        if key is None:
            return "same", b"\0\0"
        value = struct.pack(">Q", key) if isinstance(key, int) else bytes([len(key)]) + key
        return "same", struct.pack(">H", flag) + value

    return message


ABSENT = Field("void", "absent")


def encode(field: Field) -> bytes:
    """A field on the wire, written down from the specification and not by the code under test."""
    letter = LETTERS[field.type]
    value = field.value
    if letter in PACKED:
        body = struct.pack(">" + PACKED[letter], value)
    elif letter in "Sx":
        body = struct.pack(">I", len(value)) + value
    elif letter == "D":
        body = struct.pack(">BI", *value)
    elif letter == "V":
        body = b""
    else:
        entries = value.items() if letter == "F" else (("", item) for item in value)
        inner = b"".join(
            (bytes([len(name)]) + name.encode() if letter == "F" else b"") + encode(item)
            for name, item in entries
        )
        body = struct.pack(">I", len(inner)) + inner
    return letter.encode() + body


def some_key(rng: random.Random) -> bytes:
    """Empty, short, the longest there can be; any bytes, or text of several scripts."""
    length = rng.choice([0, 1, 11, 12, 13, 255, rng.randint(0, 40), rng.randint(0, 255)])
    if rng.random() < 0.5:
        return rng.randbytes(length)
    text = "".join(rng.choice("abc-_.019äß€日本語🐇") for _ in range(length)).encode()
    return text[:255].decode("utf-8", "ignore").encode()


def some_field(rng: random.Random, kind: str, depth: int = 0) -> Field:
    bits = {"byte": 8, "short": 16, "signedint": 32, "long": 64}
    unsigned = {"unsignedbyte": 8, "unsignedshort": 16, "unsignedint": 32, "timestamp": 64}
    if kind in bits:
        size = rng.randint(1, bits[kind])
        return Field(kind, rng.choice([-(1 << size - 1), (1 << size - 1) - 1, rng.getrandbits(size - 1)]))
    if kind in unsigned:
        return Field(kind, rng.getrandbits(rng.randint(1, unsigned[kind])))
    if kind in ("longstr", "binary"):
        return Field(kind, rng.randbytes(rng.choice([0, 1, 12, rng.randint(0, 300)])))
    if kind in ("table", "array"):
        kinds = [name for name in LETTERS if depth < 2 or name not in ("table", "array")]
        items = [some_field(rng, rng.choice(kinds), depth + 1) for _ in range(rng.randint(0, 4))]
        return Field(kind, items if kind == "array" else {f"n{i}": item for i, item in enumerate(items)})
    simple: dict[str, Callable[[], object]] = {
        "bool": lambda: rng.random() < 0.5,
        "void": lambda: None,
        "double": lambda: rng.choice([0.0, -0.0, 5e-324, rng.uniform(-8e307, 8e307), rng.gauss(0, 1)]),
        "float": lambda: struct.unpack(">f", struct.pack(">f", rng.gauss(0, 1e6)))[0],
        "decimal": lambda: (rng.getrandbits(8), rng.getrandbits(32)),
    }
    return Field(kind, simple[kind]())


def weighted(rng: random.Random, names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, rng.choice([1, 2, 3, 9, 10, 11, 40])) for name in names]


@pytest.fixture
def version(connection: Connection) -> str:
    return str(connection.server["version"])


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20)


def test_routing_keys_land_as_predicted_through_binds_unbinds_and_a_restart(
    broker: Broker, uri: str, rng: random.Random
) -> None:
    keys = [some_key(rng) for _ in range(COUNT)]
    with connect(uri) as connection:
        ring = HashRing(
            weighted(rng, ["q-b", "q-a", "q-ä", "q-Z", "q-10"]), version=connection.server["version"]
        )
        exchange = Exchange(connection, "orders", ring)
        exchange.check(keys, by_key)
        exchange.unbind("q-b")
        exchange.bind("q-0", 10)
        exchange.bind("q-c", 2)
        exchange.unbind("q-ä")
        exchange.bind("q-b", 7)
        exchange.check(keys, by_key)
        ring = exchange.ring
    kept = ring.version is not None and ring.version >= KEEPS_ITS_RING
    assert (ring.restart() == ring) is kept
    broker.restart()
    # Unless the broker keeps the order, it recovers bindings concurrently, and only it knows their order now.
    restarted = HashRing.from_state(ring_state(broker, uri), version=ring.version)
    assert sorted(restarted.bindings) == sorted(ring.bindings)
    if kept:
        assert restarted == ring
    check_again(uri, restarted, keys)
    restart_with_one_worker(broker)
    check_again(uri, ring.restart(), keys)


def ring_state(broker: Broker, uri: str) -> str:
    command = ("consistent_hash_exchange_ring_state", "-p", parse(uri).vhost, "orders")
    return broker.ctl(*command, tool="rabbitmq-diagnostics")


def check_again(uri: str, ring: HashRing, keys: list[bytes]) -> None:
    with connect(uri) as connection:
        Exchange(connection, "orders", ring).check(keys, by_key)


def restart_with_one_worker(broker: Broker) -> None:
    """Start the node's applications again, so that bindings are recovered one after the other."""
    name = "rabbit, default_worker_pool_size"
    again = "rabbit:stop(), rabbit:start()"
    broker.eval(f"application:set_env({name}, 1), {again}, application:unset_env({name}).")


def test_headers_of_every_type_land_as_predicted(
    connection: Connection, version: str, rng: random.Random
) -> None:
    keys: list[Any] = [some_field(rng, kind) for kind in LETTERS for _ in range(COUNT // len(LETTERS))]
    if HashRing([("a", 1)], version=version).version >= (3, 13):  # type: ignore[operator]
        keys = [key for key in keys if key.value not in ([], {})]
    ring = HashRing(weighted(rng, ["a", "b", "c", "d"]), by="header:h", version=version)
    exchange = Exchange(connection, "by-header", ring)
    exchange.check([*keys, *[None] * 50], by_header)
    # texts in bulk, which take another way through the code than single fields
    texts = [some_key(rng) for _ in range(2000)]
    exchange.check([key.decode("utf-8", "surrogateescape") for key in texts], text_header)
    exchange.check(texts, lambda key: by_header(Field("binary", key)))


def text_header(key: str) -> tuple[str, bytes]:
    return by_header(Field("longstr", key.encode("utf-8", "surrogateescape")))


def test_a_table_without_the_header_counts_as_missing(connection: Connection, version: str) -> None:
    ring = HashRing([(f"q{i}", 1) for i in range(20)], by="header:h", version=version)
    Exchange(connection, "by-header", ring).check([None, None], lambda _: by_header(ABSENT))


@pytest.mark.parametrize(
    ("name", "flag"), [("message_id", 0x80), ("correlation_id", 0x400), ("timestamp", 0x40)]
)
def test_properties_land_as_predicted(
    connection: Connection, version: str, rng: random.Random, name: str, flag: int
) -> None:
    ring = HashRing(weighted(rng, ["a", "b", "c"]), by=f"property:{name}", version=version)
    keys: list[Any] = [some_key(rng) for _ in range(COUNT)]
    if name == "timestamp":
        keys = [rng.getrandbits(rng.randint(1, 64)) for _ in keys]
    Exchange(connection, "by-property", ring).check([*keys, *[None] * 50], by_property(flag))


@pytest.mark.parametrize(
    "arguments", [{"hash-property": "priority"}, {"hash-property": "message_id", "hash-header": "h"}]
)
def test_the_broker_refuses_what_a_ring_refuses(channel: Channel, arguments: dict[str, str]) -> None:
    with pytest.raises(PreconditionFailed):
        topology.declare_exchange(channel, "no", kind="x-consistent-hash", arguments=arguments)


@pytest.mark.parametrize("weight", ["0", "-1", "1.5", "heavy", ""])
def test_the_broker_refuses_bad_weights_too(channel: Channel, weight: str) -> None:
    topology.declare_exchange(channel, "orders", kind="x-consistent-hash")
    topology.declare_queue(channel, "q")
    with pytest.raises(PreconditionFailed):
        topology.bind_queue(channel, "q", "orders", weight)
