"""Every file name in the staging folder, in one place.

<run>/owner.json                         who drives the run
<run>/fence.json                         which of its batches are over
<run>/<batch>-<nonce>/                   a batch
    <split>.seal                         the commit point of a split: what its rows are
    <split>-<attempt>.chunk              an attempt's rows
    <split>.window                       how many messages an attempt may have returned
    <split>.limbo                        its queue turned out to have a limbo
    <split>.acked                        the broker got the ack
    <split>.done                         Spark took the last row, and when
"""

from __future__ import annotations


def owner(run: str) -> str:
    return f"{run}/owner.json"


def fence(run: str) -> str:
    return f"{run}/fence.json"


def batch(run: str, seq: int, nonce: str) -> str:
    return f"{run}/{seq:08d}-{nonce}"


def batch_number(name: str) -> int | None:
    """The number in the name of a batch's folder; None for any other name."""
    number, dash, _ = name.partition("-")
    return int(number) if dash and number.isdecimal() else None


def run_of(path: str) -> str:
    return path.partition("/")[0]


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def seal(folder: str, split: int) -> str:
    return f"{folder}/{split:05d}.seal"


def is_seal(path: str) -> bool:
    return path.endswith(".seal")


def chunk(folder: str, split: int, attempt: str) -> str:
    return f"{folder}/{split:05d}-{attempt}.chunk"


def is_chunk(path: str) -> bool:
    return path.endswith(".chunk")


def window(folder: str, split: int) -> str:
    return f"{folder}/{split:05d}.window"


def limbo(folder: str, split: int) -> str:
    return f"{folder}/{split:05d}.limbo"


def acked(folder: str, split: int) -> str:
    return f"{folder}/{split:05d}.acked"


def done(folder: str, split: int) -> str:
    return f"{folder}/{split:05d}.done"
