"""`leash budget`, as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from leash import Budget
from leash.broker import Broker
from leash.cli.budget import budget_app
from leash.errors import BudgetError, ConfigError


def budget(*arguments: str, uri: str) -> Result:
    return CliRunner().invoke(budget_app, [*arguments, "--uri", uri])


def said(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_budgets_are_listed_shown_changed_and_deleted(
    uri: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", f"http://127.0.0.1:{broker.port('management')}")
    assert said(budget("list", uri=uri)) == "There are no budgets.\n"
    Budget("sms", rate=50, burst=100).open(uri).close()
    Budget("pdf", at_once=20).open(uri).close()
    listed = "pdf  at_once=20\nsms  rate=50 per second, burst=100, lease=0.1\n"
    assert said(budget("list", uri=uri)) == listed
    assert "tokens   100, worth 1 permit, each used once in 2 s\nready    100\n" in said(
        budget("show", "sms", uri=uri)
    )
    assert said(budget("set", "sms", "--rate", "2.5", uri=uri)).startswith(
        "sms: rate=5/2 per second, burst=100"
    )
    assert "in code  rate=50 per second" in said(budget("show", "sms", uri=uri))
    told = [{"name": "pdf", "at_once": 20}, {"name": "sms", "rate": 2.5, "burst": 100, "lease": 0.1}]
    assert json.loads(said(budget("list", "--json", uri=uri))) == told
    shown = json.loads(said(budget("show", "sms", "--json", uri=uri)))
    assert (shown["numbers"]["rate"], shown["in_code"]["rate"], shown["tokens"]) == (2.5, 50.0, 100)
    assert shown["period"] == 40.0
    assert json.loads(said(budget("show", "pdf", "--json", uri=uri)))["ready"] == 20
    assert said(budget("set", "pdf", "--at-once", "25", uri=uri)) == "pdf: at_once=25\n"
    assert "ready    25\n" in said(budget("show", "pdf", uri=uri))
    assert said(budget("delete", "sms", uri=uri)) == "Budget sms is deleted.\n"
    assert said(budget("list", uri=uri)) == "pdf  at_once=25\n"


def test_what_cannot_be_done_is_said(uri: str) -> None:
    for command in (("show",), ("delete",), ("set", "--rate", "5")):
        with pytest.raises(BudgetError, match="there is no budget 'none' here"):
            said(budget(command[0], "none", *command[1:], uri=uri))
    Budget("sms", rate=50).open(uri).close()
    Budget("pdf", at_once=20).open(uri).close()
    with pytest.raises(BudgetError, match="has a rate, and no at_once"):
        said(budget("set", "sms", "--at-once", "5", uri=uri))
    with pytest.raises(BudgetError, match="has at_once, and no rate"):
        said(budget("set", "pdf", "--rate", "5", uri=uri))
    with pytest.raises(ConfigError, match="at least one of"):
        said(budget("set", "sms", uri=uri))
    with pytest.raises(ConfigError, match="rate"):
        said(budget("set", "sms", "--rate", "0", uri=uri))
