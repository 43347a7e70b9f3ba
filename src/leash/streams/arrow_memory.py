"""pyarrow, or one sentence that says how to get it; and columns made of memory that is there already.

`pyarrow.array` imports pandas, where that is installed: a third of a second of CPU in every process. What is
made of buffers does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:  # pragma: no cover: it is part of every development environment
    raise ImportError("leash.streams needs pyarrow: pip install 'leash[streams]'") from error

__all__ = ["binaries", "numbers", "pa", "pc"]


def numbers(values: NDArray[Any], kind: Any) -> Any:
    """Numbers as a column, without a copy. `kind` is a type as wide as theirs."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def binaries(values: Sequence[bytes], kind: Any) -> Any:
    """Bytes as a column of large_binary, cast to `kind`. TypeError if one of them is not bytes."""
    data = pa.py_buffer(b"".join(values))
    edges = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=edges[1:])
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(edges), data]
    )
    return column.cast(kind)
