"""Which part of a message the exchange hashes, and as which Erlang term.

routing_key      the key, a binary
property:NAME    message_id and correlation_id: a binary; timestamp: its seconds in decimal, a binary
header:NAME      up to 3.12 the tuple {type, value}; from 3.13 the bare value: an integer is not hashed,
                 a timestamp counts milliseconds, and of an array or table only the first entry counts
missing          the atom undefined (headers on 3.13.0 to 3.13.6: the broker fails instead)
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.policies.ring.fields import INTEGERS, as_field, erlang
from leash.policies.ring.hash_columns import Column, columns, from_list, hash_column
from leash.policies.ring.jump import MASK
from leash.policies.ring.phash import UNDEFINED, Atom, fold_tuple, phash2

PROPERTIES = ("message_id", "correlation_id", "timestamp")
UNTYPED = (3, 13)
"""From this version on a header's type is not hashed."""


class Terms(NamedTuple):
    """How an exchange turns a message into a hash: its `by`, on a broker of a version."""

    by: str
    version: tuple[int, ...] | None

    @property
    def typed(self) -> bool:
        """True if a value's type is hashed with it."""
        return self.by.startswith("header:") and self.version is not None and self.version < UNTYPED

    def hash(self, key: object) -> int:
        """The number that seeds the jump for one key."""
        if self.by == "property:timestamp":
            return phash2(UNDEFINED if key is None else _seconds(key))
        if self.by.startswith("header:"):
            return self._header(key)
        if key is None and self.by != "routing_key":
            return phash2(UNDEFINED)
        if not isinstance(key, str | bytes):
            raise ConfigError("key", key, f"bytes or str, to hash by {self.by}")
        return phash2(key)

    def seeds(self, keys: Any) -> NDArray[np.uint32]:
        """`hash` for a column of keys, cut to the bits that the jump uses."""
        parts = [self._hashes(part) for part in columns(keys, one_kind=self.typed)]
        return np.concatenate([np.zeros(0, np.uint32), *parts]) & np.uint32(MASK)

    def _hashes(self, part: Column | list[object]) -> NDArray[np.uint32]:
        if self.by == "property:timestamp":
            part = _decimals(part)
        if isinstance(part, list):
            return np.array([self.hash(key) & MASK for key in part], np.uint32)
        kind = Atom("longstr" if part.text else "binary")
        hashes = hash_column(part, fold_tuple(0, 2, [kind]) if self.typed else 0)
        if part.missing is not None:
            if self.by == "routing_key":
                raise ConfigError("keys", None, "bytes or str: every message has a routing key")
            hashes[part.missing] = phash2(UNDEFINED)
        return hashes

    def _header(self, key: object) -> int:
        if key is None:
            return phash2(UNDEFINED)
        field = as_field(key)
        term = erlang(field)
        if self.typed:
            return phash2((Atom(field.type), term))
        if field.type == "timestamp":
            return int(term) * 1000
        if isinstance(term, list):
            if not term:
                raise ConfigError("key", key, "not empty: from 3.13 on the broker fails on an empty list")
            term = term[0]
        if isinstance(term, int) and not isinstance(term, bool):
            return term
        return phash2(term)


def check_by(by: object) -> str:
    """Check what to hash by; an error lists the possibilities."""
    allowed = "'routing_key', 'header:NAME', or 'property:' with one of " + ", ".join(PROPERTIES)
    if not isinstance(by, str):
        raise ConfigError("by", by, allowed)
    kind, _, name = by.partition(":")
    known = by == "routing_key" or (kind == "header" and name) or (kind == "property" and name in PROPERTIES)
    if not known:
        raise ConfigError("by", by, allowed)
    return by


def check_version(version: object) -> tuple[int, ...]:
    """A broker's version as numbers, from '3.10', '3.13.7', '4.1.0-rc.1' or a tuple."""
    allowed = "a RabbitMQ version from 3.8 to 4.x, such as '3.10' or (3, 13)"
    text = ".".join(map(str, version)) if isinstance(version, tuple) else version
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+~].*)?", text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError("version", version, allowed)
    found = tuple(int(part) for part in match.groups() if part is not None)
    if not ((3, 8) <= found[:2] <= (3, 13) or found[0] == 4):
        raise ConfigError("version", version, allowed)
    return found


def _seconds(key: object) -> bytes:
    low, high = INTEGERS["timestamp"]
    if not isinstance(key, int) or isinstance(key, bool) or not low <= key <= high:
        raise ConfigError("key", key, "whole seconds, to hash by property:timestamp")
    return b"%d" % key


def _decimals(part: Column | list[object]) -> Column | list[object]:
    if not isinstance(part, list):
        if len(part.starts) and (part.missing is None or not part.missing.all()):
            raise ConfigError("keys", "text", "whole seconds, to hash by property:timestamp")
        return part
    return from_list([None if key is None else _seconds(key) for key in part]) or part
