"""What an answer's code means, as an error."""

from __future__ import annotations

from leash.errors import (
    StreamError,
    StreamExists,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnsupported,
)

OK = 1
MISSING = 2
EXISTS = 5
UNAVAILABLE = 6
PRECONDITION = 17
NO_OFFSET = 19

_CODES: dict[int, tuple[type[StreamError], str]] = {
    2: (StreamMissing, "does not exist"),
    3: (StreamError, "the subscription id is in use"),
    4: (StreamError, "there is no such subscription"),
    5: (StreamExists, "exists already, with other arguments"),
    6: (StreamUnavailable, "is not available"),
    13: (StreamUnsupported, "the broker does not know this command"),
    14: (StreamError, "the frame is too large"),
    15: (StreamError, "internal error of the broker"),
    16: (StreamRefused, "access refused"),
    17: (StreamError, "precondition failed: it is not a stream, or its arguments are refused"),
    18: (StreamUnavailable, "the broker has lost the publisher"),
    19: (StreamError, "no offset is stored"),
}


def error(code: int, stream: str) -> StreamError:
    """The error that stands for a code other than OK."""
    kind, said = _CODES.get(code, (StreamError, "the broker refuses"))
    return kind(stream, said, code)


def meaning(code: int) -> str:
    """In words."""
    return _CODES.get(code, (StreamError, "the broker refuses"))[1]
