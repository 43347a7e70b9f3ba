"""hash: 100,000 messages, a consistent hash exchange, weights 1, 1, 2 and 2: where does each message go?"""

from __future__ import annotations

from random import Random

import numpy as np

from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.policies import HashRing

WEIGHTS = {"q0": 1, "q1": 1, "q2": 2, "q3": 2}
COUNT = 100_000
SEED = 20_110_412


def keys() -> list[bytes]:
    """Random routing keys, as in the document, but the same in every run."""
    random = Random(SEED)
    return [b"%d" % random.randint(1, 1_000_000) for _ in range(COUNT)]


def ring() -> HashRing:
    return HashRing(list(WEIGHTS.items()))


def simulate(progress: Progress, _: int) -> Run:
    run = Run()
    names, counts = np.unique(ring().route_many(keys()), return_counts=True)
    progress(0.7)
    fill(run, {str(name): int(count) for name, count in zip(names, counts, strict=True)})
    progress(1)
    return run


def fill(run: Run, counts: dict[str, int]) -> None:
    for name in WEIGHTS:
        run.values[f"{name}: messages"] = counts.get(name, 0)
    run.series["occupancy"] = [counts.get(name, 0) for name in WEIGHTS]


def _share(name: str) -> float:
    return COUNT * WEIGHTS[name] / sum(WEIGHTS.values())


EXPERIMENT = Experiment(
    "hash",
    "Weighted partitions: the consistent hash exchange",
    "Published: messages are spread in proportion to the weights. Leash computes the broker's own hash, so "
    "it knows beforehand to which queue every key goes.",
    [
        *[
            Claim(
                f"{name}: messages",
                "of 100,000",
                round(_share(name)),
                0.97 * _share(name),
                1.03 * _share(name),
            )
            for name in WEIGHTS
        ],
        Claim("misrouted", "messages", None, 0, 0),
    ],
    simulate,
    "Predicted and measured bars are equal to the last message, and the number of misrouted messages is 0.",
)
