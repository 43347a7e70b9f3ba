"""What the page's tests share: reports as a process would send them."""

from __future__ import annotations

from typing import Any


def report(name: str = "worker-1", seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    """Of a consumer that is fine."""
    told: dict[str, Any] = {
        "v": 1,
        "kind": "consumer",
        "id": name,
        "name": name,
        "host": "h",
        "pid": 1,
        "leash": "0",
        "workers": 4,
        "seconds": seconds,
        "connected": True,
        "stopping": False,
        "blocked": None,
        "round_trip": 0.001,
        "reconnects": 0,
        "republishing": 0,
        "trouble": None,
        "overdue": 0,
        "spread": 0.5,
        "bound": 1.0,
        "unfair": {},
        "broker": "b:1",
        "queues": {},
        "errors": [],
    }
    return told | more


def queue(**more: Any) -> dict[str, Any]:
    return {"quantum": 1, "window": 10, "consumed": True, **more}
