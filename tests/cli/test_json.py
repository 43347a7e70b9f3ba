"""Every command that prints a table prints JSON when asked; extras that are missing are a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from leash.amqp import Channel
from leash.broker import Broker, beside
from leash.cli.main import app
from leash.errors import ConfigError
from tests.cli.kit import park
from tests.consumer.kit import fill


def asked(*arguments: str, uri: str = "", status: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments, env={"LEASH_URI": uri, "LEASH_MANAGEMENT_URL": ""})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


NO_TABLE = {
    *("consume", "run", "page", "demo", "ring remind", "dead retry", "dead purge", "budget set"),
    *("budget delete", "tenants declare", "tenants adopt", "tenants unadopt", "tenants isolate"),
    *("tenants release", "tenants delete", "stream create", "broker start", "broker stop", "broker uri"),
}
"""Commands that act, and say so in a line or two; and those that show something live."""


def test_every_other_command_has_json() -> None:
    def without(command: Any, path: str) -> set[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return set() if any("--json" in each.opts for each in command.params) else {path}
        return {found for name, each in inner.items() for found in without(each, f"{path} {name}".strip())}

    assert without(typer.main.get_command(app), "") == NO_TABLE


def test_parked_messages(channel: Channel, uri: str) -> None:
    park(channel, uri, 2)
    assert asked("dead", "list", "orders", "--json", uri=uri) == [{"queue": "orders", "parked": 2}]
    shown = asked("dead", "show", "orders", "--limit", "1", "--json", uri=uri)
    assert shown["parked"] == 2
    (message,) = shown["messages"]
    assert message["body"] == "0"
    assert message["tries"] == 1
    assert message["error"].startswith("ValueError: no customer 0")
    assert "Traceback" in message["traceback"]


def test_a_private_nodes_management_plugin_is_found(channel: Channel, uri: str, broker: Broker) -> None:
    fill(channel, "leash.dead.orders", 3)
    assert asked("dead", "list", "--json", uri=uri) == [{"queue": "orders", "parked": 3}]
    assert beside(uri) is not None
    assert beside("amqp://somewhere.invalid:5672") is None
    assert beside("amqp://127.0.0.1:1") is None


def test_partitions(uri: str, channel: Channel, tmp_path: Path) -> None:
    made = ["ring", "apply", "orders", "--weights", "orders.0=1,orders.1=2", "--slots", "30", "--yes"]
    assert CliRunner().invoke(app, made, env={"LEASH_URI": uri}).exit_code == 0
    told = asked("ring", "show", "orders", "--json", uri=uri)
    assert [(each["queue"], each["slots"], each["ready"]) for each in told["queues"]] == [
        ("orders.0", 10, 0),
        ("orders.1", 20, 0),
    ]
    routes = asked("ring", "route", "orders", "a", "b", "--json", uri=uri)
    assert [each["key"] for each in routes] == ["a", "b"]
    planned = asked("ring", "plan", "orders", "--weigh", "orders.0=2", "--json", uri=uri)
    assert planned["moved"] == pytest.approx(sum(move["share"] for move in planned["moves"]))
    assert planned["steps"]
    assert asked("ring", "check", "orders", "--json", uri=uri)["in_order"] is True
    again = asked("ring", "apply", "orders", "--weigh", "orders.0=2", "--yes", "--json", uri=uri)
    assert again["moved"] == pytest.approx(planned["moved"])
    assert asked("ring", "apply", "orders", "--yes", "--json", uri=uri)["steps"] == []
    with pytest.raises(ConfigError, match="together with --yes"):
        asked("ring", "apply", "orders", "--json", uri=uri)
    routes = asked("ring", "route", "orders", "a", "b", "--json", uri=uri)
    keys = tmp_path / "keys"
    keys.write_text("a\na\nb\n")
    told = asked("ring", "skew", "orders", str(keys), "--json", uri=uri)
    assert told["hot"] == [{"key": "a", "messages": 2, "queue": routes[0]["queue"]}]
    assert sum(each["messages"] for each in told["queues"]) == 3


def test_the_lab_and_a_broker_that_does_not_run(tmp_path: Path) -> None:
    told = asked("lab", "rate", "--simulate", "--json", "-")
    assert told
    state = asked("broker", "status", "--folder", str(tmp_path), "--json", status=1)
    assert state == {"running": False, "folder": str(tmp_path), "nodes": []}


def test_stop_means_the_private_node_and_a_folder_wins_over_leash_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node runs here, so that all is said by the folder that is looked into."""
    elsewhere = "amqp://u:secret@elsewhere.invalid"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runner = CliRunner()
    for arguments in (["broker", "stop"], ["broker", "stop", "--folder", str(tmp_path / "x")]):
        result = runner.invoke(app, arguments, env={"LEASH_URI": elsewhere})
        assert (result.exit_code, result.output) == (0, "Was not running.\n")
    result = runner.invoke(app, ["broker", "uri"], env={"LEASH_URI": elsewhere})
    assert result.output == elsewhere + "\n"
    result = runner.invoke(app, ["broker", "uri", "--folder", str(tmp_path)], env={"LEASH_URI": elsewhere})
    assert "there is no broker in" in str(result.exception)


def test_a_private_node_is_stopped_although_leash_uri_is_set(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state" / "leash" / "broker"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Broker(folder, owned=True) as node:
        told = asked("broker", "status", "--folder", str(folder), "--json", uri=broker.uri)
        assert told["nodes"][0]["answers"] is True
        assert node.management
        result = CliRunner().invoke(app, ["broker", "stop"], env={"LEASH_URI": broker.uri})
        assert result.output == "Stopped.\n"
        assert not node.running
        assert broker.running


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        (
            "pyspark",
            ["run", "nowhere.toml"],
            "leash run needs pyspark, which is not installed: pip install 'leash[spark]'",
        ),
        ("pyspark", ["plan"], "leash plan needs pyspark, which is not installed: pip install 'leash[spark]'"),
        ("pyspark", ["demo"], "leash demo needs pyspark, which is not installed: pip install 'leash[spark]'"),
        ("plotly", ["demo"], "leash demo needs plotly, which is not installed: pip install 'leash[lab]'"),
        ("plotly", ["plan", "--report", "x.html"], "--report needs plotly, which is not installed: pip"),
        ("plotly", ["lab", "rate", "--simulate", "--report", "x.html"], "--report needs plotly, which"),
    ],
)
def test_a_missing_extra_is_a_sentence_before_any_work(
    tmp_path: Path, missing: str, arguments: list[str], said: str
) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from leash.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"leash: {said}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
