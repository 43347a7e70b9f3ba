"""Spark's Python task workers: processes that its daemon, a child of the JVM, has forked."""

from __future__ import annotations

from pathlib import Path

_DAEMON = b"pyspark.daemon"


def python_workers(driver: int) -> list[int]:
    """Those that descend from the process `driver`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
    return [pid for pid in parents if _is_worker(pid, parents) and _descends(pid, driver, parents)]


def _is_worker(pid: int, parents: dict[int, int]) -> bool:
    return _DAEMON in _command(pid) and _DAEMON in _command(parents[pid])


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
