"""`leash ring`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leash.amqp import Connection
from leash.cli.ring import ring_app
from leash.errors import ConfigError, TopologyError
from leash.partitions import Partitions, read
from tests.partitions.helpers import drain, landed, publish, random_keys, weights

STATE = "".join(f"Ring index: {i}, queue: 'q{i}'\n" for i in range(10))


def ring(*arguments: str, uri: str | None = None, typed: str | None = None) -> Result:
    where = ["--uri", uri] if uri else []
    return CliRunner().invoke(ring_app, [*arguments, *where], input=typed)


def said(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def state(tmp_path: Path) -> str:
    file = tmp_path / "ring.txt"
    file.write_text(STATE)
    return str(file)


def test_partitions_are_made_looked_at_and_grown(uri: str, connection: Connection) -> None:
    made = said(
        ring("apply", "orders", "--weights", "orders.0=1,orders.1=2", "--slots", "30", "--yes", uri=uri)
    )
    assert "create classic queue 'orders.1', weight 2" in made
    assert made.endswith("done\n")
    shown = said(ring("show", "orders", uri=uri)).split()
    assert shown[shown.index("orders.1") :][:3] == ["orders.1", "2", "20"]
    plan = said(ring("plan", "orders", "--bind", "orders.2=3", uri=uri))
    assert "bring queue 'orders.2', weight 3" in plan
    assert "moves 50." in plan or "moves 49.9" in plan
    assert read(uri, "orders").queues == ("orders.0", "orders.1")
    assert "moved" in said(ring("apply", "orders", "--bind", "orders.2=3", "--yes", uri=uri))
    assert read(uri, "orders").queues == ("orders.0", "orders.1", "orders.2")
    assert said(ring("apply", "orders", uri=uri)).startswith("nothing to do")
    assert "gates of move 1 wait until all older messages in 'orders.0' are settled" in said(
        ring("show", "orders", uri=uri)
    )
    assert "move 1: marker for queue 'orders.1'" in said(ring("remind", "orders", uri=uri))


def test_route_says_where_keys_go_and_the_broker_agrees(uri: str, connection: Connection) -> None:
    layout = Partitions("orders", weights(3), slots=30).declare(uri)
    keys = random_keys(200)
    lines = said(ring("route", "orders", "-", uri=uri, typed="\n".join(keys))).splitlines()
    publish(uri, "orders", keys)
    places = landed(drain(connection, layout.queues, len(keys)))
    assert lines == [f"{key}\t{places[i]}" for i, key in enumerate(keys)]


def test_apply_asks_first_and_takes_no_for_an_answer(uri: str) -> None:
    refused = ring("apply", "orders", "--weights", "a=1", "--slots", "12", uri=uri, typed="n\n")
    assert refused.exit_code == 1
    with pytest.raises(TopologyError, match="partitions 'orders' do not exist"):
        read(uri, "orders")


def test_check_says_that_nothing_was_shuffled(uri: str) -> None:
    Partitions("orders", weights(2), slots=12).declare(uri)
    assert "the ring is in the stored order" in said(ring("check", "orders", uri=uri))


def test_a_retired_queue_is_deleted_when_asked_for(uri: str) -> None:
    Partitions("orders", weights(2), slots=12, ordered=False).declare(uri)
    output = said(ring("apply", "orders", "--unbind", "orders.1", "--yes", "--delete-retired", uri=uri))
    assert "retire queue 'orders.1'" in output
    assert output.endswith("deleted queue 'orders.1'\n")


def test_a_ring_that_others_made_is_planned_from_what_the_broker_prints(state: str, tmp_path: Path) -> None:
    sample = tmp_path / "keys.txt"
    sample.write_text("\n".join(random_keys(1000)))
    plan = said(ring("plan", "e", "--state", state, "--unbind", "q0", "--sample", str(sample)))
    assert "moves 98.9% of all keys" in plan
    assert "of the sample's 1000 messages" in plan
    last = said(ring("plan", "e", "--state", state, "--unbind", "q9"))
    assert "moves 10.0% of all keys" in last
    assert "moves 0.0% of all keys" in said(ring("plan", "e", "--state", state, "--restart"))
    shown = said(ring("show", "e", "--state", state)).split()
    assert shown[shown.index("q3") :][:2] == ["q3", "1"]


def test_an_upgrade_of_a_header_hashing_broker_is_planned(state: str) -> None:
    plan = said(ring("plan", "e", "--state", state, "--by", "header:customer", "--upgrade", "3.13"))
    assert "moves 90.0% of all keys" in plan


def test_skew_names_the_hot_keys_and_draws_bars(state: str, tmp_path: Path) -> None:
    sample = tmp_path / "keys.txt"
    sample.write_text("\n".join([*random_keys(900), *["whale"] * 100]))
    output = said(ring("skew", "e", str(sample), "--state", state, "--top", "3"))
    assert "1000 keys" in output
    (hot,) = [line for line in output.splitlines() if "whale" in line]
    assert hot.startswith("  10.00%")
    assert "100 messages" in hot
    bars = {line.split()[0]: line.count("█") for line in output.splitlines() if line.startswith("q")}
    assert max(bars.values()) == 30
    assert len(bars) == 11  # and the heading


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "e", "--unbind", "nowhere"], "unbind='nowhere': must be one of q0"),
        (["plan", "e", "--weigh", "q0"], "NAME=WEIGHT"),
        (["plan", "e", "--weigh", "nowhere=2"], "one of q0"),
        (["plan", "e", "--bind", "q1"], "not bound yet"),
        (["plan", "e", "--weights", "a=0"], "weight=0: must be a whole number of at least 1"),
        (["plan", "e"], "what to change"),
        (["plan", "e", "--restart", "--bind", "x"], "no other change"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_sentence(
    state: str, arguments: list[str], sentence: str
) -> None:
    result = ring(*arguments, "--state", state)
    assert isinstance(result.exception, ConfigError)
    assert sentence in str(result.exception)
