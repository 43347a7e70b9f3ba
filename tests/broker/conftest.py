"""A folder for a node or a cluster, of which nothing is left afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leash.broker import at


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    yield path / "node"
    at(path / "node").stop(purge=True)
    shutil.rmtree(path)
