"""Python values to message bodies and back: bytes, text, JSON, dataclasses, pydantic models.

pydantic is used where a value or an annotation is one of its models, and never imported otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from leash.errors import ConfigError, Undecodable

JSON, TEXT = "application/json", "text/plain"

_ALLOWED = "bytes, str, a dict or list for JSON, a dataclass or a pydantic model"
_SIMPLE = (str, int, float, bool)
_PARSED: dict[type, Callable[[str], object]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}


def encode(value: object) -> tuple[bytes, str]:
    """A body, and its content type ("" for bytes)."""
    if isinstance(value, bytes):
        return value, ""
    if isinstance(value, str):
        try:
            return value.encode(), TEXT
        except UnicodeEncodeError as error:
            raise ConfigError("body", value[:40], f"text that is UTF-8 ({error.reason})") from None
    if isinstance(value, bytearray | memoryview):
        return bytes(value), ""
    dump = getattr(value, "model_dump_json", None)
    if callable(dump) and not isinstance(value, type):
        return str(dump()).encode(), JSON
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    elif not isinstance(value, dict | list):
        raise ConfigError("body", type(value).__name__, _ALLOWED)
    try:
        return json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError("body", type(value).__name__, f"what JSON can hold ({error})") from error


def _plain(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


def decoder(wanted: Any) -> Callable[[bytes], Any]:
    """What makes a value of the wanted type of a body; it raises Undecodable. ConfigError for a type that
    there is no way to.
    """
    if wanted is bytes:
        return _same
    if wanted is str:
        return _text
    if callable(validate := getattr(wanted, "model_validate_json", None)):
        return lambda body: _checked(validate, body, wanted)
    if not _known(wanted):
        raise ConfigError("handler", _name(wanted), f"an argument of type Message, {_ALLOWED}")
    return lambda body: _checked(lambda raw: _build(wanted, json.loads(raw)), body, wanted)


def _same(body: bytes) -> bytes:
    return body


def _text(body: bytes) -> Any:
    return _checked(bytes.decode, body, str)


def _checked(make: Callable[[bytes], Any], body: bytes, wanted: Any) -> Any:
    """pydantic's errors are ValueErrors too."""
    try:
        return make(body)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Undecodable(f"the body is not {_name(wanted)}: {error}") from error


def _known(wanted: Any, seen: tuple[Any, ...] = ()) -> bool:
    """True if `_build` can make it, fields and elements included."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object, None, types.NoneType, dict, list, *_SIMPLE) or wanted in _PARSED:
        return True
    if origin is typing.Literal:
        return True
    if origin in (typing.Union, types.UnionType, list, dict, tuple, set, frozenset, Mapping, Sequence):
        return all(each is ... or _known(each, seen) for each in inner)
    if not isinstance(wanted, type):
        return False
    if dataclasses.is_dataclass(wanted):
        return wanted in seen or all(_known(each, (*seen, wanted)) for each in _fields(wanted).values())
    return issubclass(wanted, Enum) or callable(getattr(wanted, "model_validate", None))


def _fields(kind: type) -> dict[str, Any]:
    """The types of a dataclass's arguments."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}


def _build(wanted: Any, value: Any) -> Any:
    """A value of JSON as what was asked for; ValueError if it is something else."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in (Any, object):
        return value
    if wanted in (None, types.NoneType):
        return _one_of(value, [None])
    if origin is typing.Literal:
        return _one_of(value, inner)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(inner, value)
    if wanted in (dict, list) or origin in (dict, list, tuple, set, frozenset, Mapping, Sequence):
        return _container(origin or wanted, inner, value)
    if wanted is float and type(value) is int:
        return float(value)
    if wanted in _SIMPLE:
        return _typed(value, wanted)
    if wanted in _PARSED:
        is_number = wanted is Decimal and type(value) in (int, float)
        return _PARSED[wanted](str(value) if is_number else _typed(value, str))
    if dataclasses.is_dataclass(wanted):
        return _record(wanted, _typed(value, dict))
    if issubclass(wanted, Enum):
        return wanted(value)
    return wanted.model_validate(value)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # True is an int, and not meant as one
        raise ValueError(f"{_name(kind)} is needed, not {type(value).__name__}")
    return value


def _one_of(value: Any, allowed: Sequence[Any]) -> Any:
    for each in allowed:
        if value == each and type(value) is type(each):
            return value
    raise ValueError(f"{value!r} is not one of {', '.join(map(repr, allowed))}")


def _first_that_fits(kinds: Sequence[Any], value: Any) -> Any:
    errors = []
    for kind in kinds:
        try:
            return _build(kind, value)
        except (ValueError, TypeError, ArithmeticError) as error:
            errors.append(str(error))
    raise ValueError("; ".join(errors))


def _container(kind: Any, inner: Sequence[Any], value: Any) -> Any:
    if kind in (dict, Mapping):
        _typed(value, dict)
        return {_key(inner[0], k): _build(inner[1], v) for k, v in value.items()} if inner else value
    _typed(value, list)
    if kind is tuple and inner and inner[-1] is not ...:
        if len(inner) != len(value):
            raise ValueError(f"{len(inner)} elements are needed, not {len(value)}")
        return tuple(_build(each, got) for each, got in zip(inner, value, strict=True))
    made = [_build(inner[0], each) for each in value] if inner else value
    return made if kind in (list, Sequence) else kind(made)


def _key(wanted: Any, key: str) -> Any:
    """JSON's keys are text."""
    return int(key) if wanted is int else _build(wanted, key)


def _record(kind: Any, value: dict[str, Any]) -> Any:
    """Fields that the class does not have are ignored, so that publishers can add some."""
    made = {}
    for name, wanted in _fields(kind).items():
        if name in value:
            try:
                made[name] = _build(wanted, value[name])
            except (ValueError, TypeError, ArithmeticError) as error:
                raise ValueError(f"{name}: {error}") from error
    if missing := [name for name in _needed(kind) if name not in value]:
        raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return kind(**made)


def _needed(kind: Any) -> list[str]:
    """A dataclass's arguments without a default. An `__init__` of its own says itself what it needs."""
    if not kind.__dataclass_params__.init:
        return []
    none = dataclasses.MISSING
    return [
        each.name
        for each in dataclasses.fields(kind)
        if each.init and each.default is none and each.default_factory is none
    ]


def _name(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
