"""All experiments by name, and how each is measured on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leash.errors import ConfigError
from leash.lab import (
    codel,
    fair,
    hashing,
    live_codel,
    live_fair,
    live_hashing,
    live_qos,
    live_rate,
    live_tenants,
    qos,
    rate,
    tenants,
)
from leash.lab.figures import Experiment, Progress, Run

Measure = Callable[[str, Progress], Run]
"""Called with the URI of its own virtual host."""

_LIVE = {
    fair: live_fair,
    qos: live_qos,
    codel: live_codel,
    rate: live_rate,
    hashing: live_hashing,
    tenants: live_tenants,
}


def chosen(names: Sequence[str]) -> list[tuple[Experiment, Measure]]:
    """The experiments of these names, each with its measurement."""
    known = {module.EXPERIMENT.name: (module.EXPERIMENT, live.measure) for module, live in _LIVE.items()}
    for name in names:
        if name not in known:
            raise ConfigError("experiment", name, f"one of {', '.join(known)}")
    return [known[name] for name in names]
