"""What the tests of private nodes and clusters share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def leash(*arguments: str, code: int = 0, **environment: str) -> str:
    """Run `leash broker`; what it prints."""
    env = {k: v for k, v in os.environ.items() if k != "LEASH_URI"} | environment
    command = [sys.executable, "-m", "leash.cli", "broker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def processes_in(folder: Path) -> list[str]:
    """Command lines of live processes whose environment or arguments name something in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command and str(folder).encode() in environment + command:
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def listening(port: int) -> list[str]:
    """The addresses on which a port listens, from the kernel's tables."""
    addresses = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.rpartition(":")
            if state == "0A" and int(number, 16) == port:
                addresses.append(address)
    return addresses
