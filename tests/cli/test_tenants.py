"""`leash tenants`, as a user types it."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner, Result

from leash import Consumer, Message
from leash.amqp import Channel, topology
from leash.broker import Broker
from leash.cli.tenants import tenants_app
from leash.errors import ConfigError, LeashError, TopologyError
from leash.page.noisy_tenants import merge
from tests.consumer.kit import running
from tests.tenants.kit import JOBS, message, send
from tests.waiting import until


def tenants(*arguments: str, uri: str) -> Result:
    return CliRunner().invoke(tenants_app, [*arguments, "--uri", uri])


def said(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_they_are_made_shown_adopted_isolated_released_and_deleted(
    uri: str, broker: Broker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", f"http://127.0.0.1:{broker.port('management')}")
    for _ in range(2):
        assert said(tenants("declare", "jobs", "--lanes", "8", "--own", "2", uri=uri)) == (
            "Publish to the exchange jobs: by header:tenant, 8 lanes, 2 for isolated tenants.\n"
        )
    JOBS.declare(uri)  # the same, in code
    lane = JOBS.state(uri).lane("acme")
    send(uri, [message("acme")] * 3)
    assert said(tenants("show", "jobs", "acme", uri=uri)).splitlines() == [
        "jobs: by header:tenant, 8 classic lanes, 2 for isolated tenants",
        f"waiting   {lane}  3",
        f"{'acme':<{len(f'waiting   {lane}')}}  {lane}",
    ]
    isolated = said(tenants("isolate", "jobs", "acme", uri=uri))
    assert isolated == "acme goes to jobs.own-00; 3 messages of its old lane were sorted.\n"
    topology.declare_queue(channel, "old")
    topology.bind_queue(channel, "old", "amq.direct", "work")
    assert said(tenants("adopt", "jobs", "old", uri=uri)).splitlines() == [
        "Consumers of jobs move what comes to old.",
        "Exchange amq.direct, key 'work': bound to jobs instead.",
    ]
    shown = json.loads(said(tenants("show", "jobs", "acme", "--json", uri=uri)))
    assert shown["isolated"] == {"acme": "jobs.own-00"}
    assert shown["routes"] == {"acme": "jobs.own-00"}
    assert shown["waiting"] == {"jobs.own-00": 3}
    assert shown["adopted"] == ["old"]
    assert "acme shares a lane again" in said(tenants("release", "jobs", "acme", uri=uri))
    assert "no longer take messages from old" in said(tenants("unadopt", "jobs", "old", uri=uri))
    assert "with their lanes" in said(tenants("delete", "jobs", "--queues", uri=uri))
    with pytest.raises(
        TopologyError, match="'jobs' do not exist: make them with `leash tenants declare jobs`"
    ):
        said(tenants("show", "jobs", uri=uri))


def test_the_noisy_of_all_processes_are_shown(uri: str) -> None:
    JOBS.declare(uri)
    with pytest.raises(LeashError, match="no consumer of tenants 'jobs' reported within 1 s"):
        said(tenants("top", "jobs", "--seconds", "1", uri=uri))
    consumer = Consumer(uri, tenants=JOBS)

    @consumer.handler
    def handle(message: Message) -> None:
        time.sleep(0.05 if message.headers["tenant"] == "slow" else 0)

    send(uri, [message("acme")] * 90 + [message("slow")] * 5)
    with running(consumer):
        until(lambda: sum(each.handled for each in consumer.stats().queues.values()) == 95)

        def named() -> bool:
            try:
                shown = json.loads(said(tenants("top", "jobs", "--seconds", "2", "--json", uri=uri)))
            except LeashError:
                return False
            by_name = {each["tenant"]: each for each in shown["top"]}
            return bool(by_name) and by_name["slow"]["time"] > 0.5 and by_name["acme"]["messages"] > 0.5

        until(named)
        assert "slow" in said(tenants("top", "jobs", "--seconds", "2", uri=uri))


def test_reports_of_processes_are_added_up() -> None:
    first = {"messages": 100, "seconds": 10, "top": [["acme", "a", 50, 1], ["slow", "b", 1, 9]]}
    second = {"messages": 100, "seconds": 10, "top": [["acme", "own", 90, 2]]}
    heard = merge([first, second])
    assert heard.processes == 2
    assert heard.rows == [("acme", "own", 0.15, 0.7), ("slow", "b", 0.45, 0.005)]
    assert merge([]).rows == []


def test_bad_numbers_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="lanes=0"):
        said(tenants("declare", "jobs", "--lanes", "0", uri=uri))
    with pytest.raises(ConfigError, match="by='tenant': 'routing_key', 'header:NAME'"):
        said(tenants("declare", "jobs", "--by", "tenant", uri=uri))
