"""What one round robin passes to the next process: who owes what, since which round, and the order."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from leash.errors import ConfigError
from leash.policies.exact_numbers import whole
from leash.policies.fair.rounds import Lane, Rounds


def save(tiers: list[Rounds], lanes: dict[str, Lane]) -> dict[str, Any]:
    accounts: dict[int, list[list[Any]]] = {rounds.tier: [] for rounds in tiers}
    for name, lane in lanes.items():
        if lane.round or lane.balance:
            accounts[lane.rounds.tier].append([name, lane.balance, lane.round, lane.granted])
    return {
        "tiers": [
            {
                "tier": rounds.tier,
                "round": rounds.round,
                "claim": rounds.claim,
                "turns": [*rounds.held, *(lane.name for lane in rounds.turns)],
                "lanes": accounts[rounds.tier],
            }
            for rounds in tiers
        ]
    }


def load(state: Mapping[str, Any], tiers: list[Rounds], lanes: dict[str, Lane]) -> None:
    _clear(tiers, lanes)
    here = {rounds.tier: rounds for rounds in tiers}
    try:
        for saved in state["tiers"]:
            if saved["tier"] in here:
                _load_tier(saved, here[saved["tier"]], lanes)
    except (KeyError, TypeError, ValueError) as error:
        _clear(tiers, lanes)
        raise ConfigError("state", state, "what state() returned") from error


def _clear(tiers: list[Rounds], lanes: dict[str, Lane]) -> None:
    for rounds in tiers:
        rounds.reset()
    for lane in lanes.values():
        lane.reset()


def _load_tier(saved: Mapping[str, Any], rounds: Rounds, lanes: dict[str, Lane]) -> None:
    rounds.round = whole("round", saved["round"], 1)
    rounds.claim = whole("claim", saved["claim"], 0)
    for name, balance, last_round, granted in saved["lanes"]:
        lane = lanes.get(name)
        if lane is not None and lane.rounds is rounds:
            lane.balance = index(balance)
            lane.round = whole("round", last_round, 0, rounds.round)
            lane.granted = bool(granted)
    for name in saved["turns"]:
        lane = lanes.get(name)
        if lane is not None and lane.rounds is rounds and not lane.listed:
            rounds.join(lane)
