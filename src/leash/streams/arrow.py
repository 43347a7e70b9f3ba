"""pyarrow, or one sentence that says how to get it."""

from __future__ import annotations

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:  # pragma: no cover: it is part of every development environment
    raise ImportError("leash.streams needs pyarrow: pip install 'leash[streams]'") from error

__all__ = ["pa", "pc"]
