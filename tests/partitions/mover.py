"""A process that changes partitions and kills itself at a step; arguments: URI, number of queues, step."""

from __future__ import annotations

import os
import signal
import sys

from leash.partitions import Partitions
from tests.partitions.helpers import weights

SLOTS = 20
SETTLE = 0.1


def main(uri: str, count: str, step: str) -> None:
    def reached(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Partitions("orders", weights(int(count)), slots=SLOTS).apply(uri, settle=SETTLE, reached=reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
