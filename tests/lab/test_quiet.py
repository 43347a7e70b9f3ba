"""Whether the machine let us measure."""

from __future__ import annotations

import os
import signal
import time

import pytest

from leash.lab.figures import Run
from leash.lab.quiet import TRIES, Sleeper, quietest, timed
from tests.consumer.kit import until


def test_a_machine_that_is_away_for_a_while_is_noticed() -> None:
    with Sleeper() as sleeper:

        def noticed() -> bool:
            """Not if it is hit while it writes a line: that time is its own."""
            since = time.monotonic()
            os.kill(sleeper._process.pid, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(sleeper._process.pid, signal.SIGCONT)
            time.sleep(0.2)
            return sleeper.away(since, now := time.monotonic()) * (now - since) > 0.35

        until(noticed)


def test_the_sleeper_ends_with_its_block() -> None:
    with Sleeper() as sleeper:
        pass
    assert sleeper._process.returncode is not None


@pytest.mark.parametrize(
    ("away", "taken", "tries"),
    [
        ([0.0], 0, 1),
        ([0.3, 0.02], 1, 2),
        ([0.3, 0.1, 0.2, *[0.4] * (TRIES - 3)], 1, TRIES),
    ],
)
def test_the_first_quiet_try_is_taken_or_else_the_quietest(
    monkeypatch: pytest.MonkeyPatch, away: list[float], taken: int, tries: int
) -> None:
    left = list(away)
    monkeypatch.setattr(Sleeper, "away", lambda *_: left.pop(0))
    made: list[int] = []

    def measure() -> int:
        made.append(len(made))
        return made[-1]

    run = Run(away=0.05)
    assert timed(run, measure) == taken
    assert len(made) == tries
    assert run.away == max(0.05, away[taken])
    assert run.again == tries - 1


def test_an_error_while_measuring_is_not_tried_again() -> None:
    tries = []

    def measure() -> None:
        tries.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        quietest(measure)
    assert len(tries) == 1
