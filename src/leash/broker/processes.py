"""The processes of a private broker: found by id and start time, so that a reused id is never hit, and by
the mark that each of them has in its environment.

Run as a program, this file is the watchdog of an owned broker: it waits for the end of its owner and then
ends the broker. So it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

MARK = "LEASH_NODE"
"""The environment variable with the folder of the node or cluster that a process belongs to."""

_LOOK = 0.2  # seconds between the watchdog's looks at its owner
_KILL_SECONDS = 10.0


def spawn(command: list[str], environment: Mapping[str, str], log: Path | None = None) -> int:
    """Start a program in its own session, so that it may outlive us; returns its id.

    It inherits none of our files but the log, so that readers of our output do not wait for it.
    """
    with open(log or os.devnull, "a") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    process.returncode = 0  # not waited for here; `alive` reaps it if it ends before us
    return process.pid


def started(pid: int) -> str:
    """When a process was started, according to the kernel; empty if it does not exist."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def alive(pid: int, since: str) -> bool:
    """True if the process with this start time still runs."""
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended would stay a zombie
    fields = _stat(pid)
    return bool(fields) and fields[19] == since and fields[0] != "Z"


def stopped(pid: int) -> bool:
    """True if a process is frozen by SIGSTOP."""
    return _stat(pid)[:1] == ["T"]


def gone(pid: int, since: str, seconds: float) -> bool:
    """Wait for a process to end; False: it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while alive(pid, since):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def signal_group(pid: int, sign: signal.Signals) -> None:
    """Send a signal to a group, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, sign)


def kill(pid: int, since: str) -> None:
    """End a process for certain."""
    if alive(pid, since):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        gone(pid, since, _KILL_SECONDS)


def marked(folder: Path) -> Iterator[int]:
    """Every process of the node or cluster in a folder, whoever started it."""
    wanted = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or belongs to another user
                continue
            if any(each == wanted or each.startswith(wanted + b"/") for each in environment):
                yield int(entry.name)


def kill_marked(folder: Path) -> None:
    """SIGKILL them all, and those that they start meanwhile, until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := [(pid, started(pid)) for pid in marked(folder)]) and time.monotonic() < deadline:
        for pid, _ in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid, since in found:
            gone(pid, since, deadline - time.monotonic())


def watch_owner(folder: Path) -> tuple[int, str]:
    """Start a watchdog that ends all processes of a folder when this process ends, however it ends."""
    own = os.getpid()
    command = [sys.executable, "-I", "-S", __file__, str(own), started(own), str(folder)]
    pid = spawn(command, os.environ)
    return pid, started(pid)


def _watch(owner: int, since: str, folder: Path) -> None:
    while alive(owner, since):
        time.sleep(_LOOK)
    kill_marked(folder)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
