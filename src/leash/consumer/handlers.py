"""The user's functions: checked when they are decorated, and put together into one that gets every message.

    middleware, outermost first -> the queue's own handler, or the one for all -> its decoded argument

What a handler's first argument is annotated with decides what it gets: nothing or Message, the message; any
other type, the body decoded (see `leash.bodies`). A body that is not that fails with Undecodable.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, overload

from leash import bodies
from leash.consumer.message import Message
from leash.consumer.workers import Batch, is_async
from leash.errors import ConfigError

Next = Callable[[Message], Any]
Middleware = Callable[[Message, Next], Any]
"""Called around the handler: it calls the second argument with the first, or does not."""


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class Model(Protocol):
    """pydantic's."""

    def model_dump_json(self) -> str: ...


R = TypeVar("R")
D = TypeVar("D", bound=bytes | str | dict[str, Any] | list[Any] | Dataclass | Model)


class Decorator(Protocol):
    """What `@consumer.handler("orders")` takes, as `@consumer.handler` does."""

    @overload
    def __call__(self, function: Callable[[Message], R], /) -> Callable[[Message], R]: ...

    @overload
    def __call__(self, function: Callable[[D], R], /) -> Callable[[D], R]: ...

    @overload
    def __call__(self, function: Callable[[D, Message], R], /) -> Callable[[D, Message], R]: ...


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Handlers:
    """Of one consumer."""

    def __init__(self, middleware: Iterable[Middleware]) -> None:
        self._for_all: Callable[..., Any] | None = None
        self._by_queue: dict[str, Callable[..., Any]] = {}
        self._middleware = list(middleware)
        for each in self._middleware:
            count = _counted(each, "middleware")
            if count is not None and count != 2:
                raise ConfigError("middleware", each, "a function of a message and of what to call next")
        self.batch: Batch | None = None

    def add(self, function: Callable[..., Any], queues: Sequence[str] = ()) -> None:
        """For some queues, or for all that have none of their own."""
        taker = _taker(function)
        if self.batch is not None:
            raise ConfigError("handler", function, "none: the consumer has a batch handler, for all queues")
        for queue in queues:
            if queue in self._by_queue:
                raise ConfigError("handler", function, f"one handler for queue {queue!r}, and it has one")
            self._by_queue[queue] = taker
        if not queues:
            if self._for_all is not None:
                raise ConfigError("handler", function, "one handler for all queues, and there is one")
            self._for_all = taker

    def add_batch(self, function: Callable[..., Any], batch: Batch) -> None:
        if self._for_all is not None or self._by_queue:
            raise ConfigError("handler", function, "one batch handler and no other")
        if self._middleware:
            raise ConfigError("middleware", self._middleware, "none with a batch handler")
        if _counted(function, "handler") not in (1, None):
            raise ConfigError("handler", function, "a function of one argument, a list of messages")
        self._for_all, self.batch = function, batch

    def together(self, queues: Iterable[str]) -> Callable[..., Any]:
        """One function for all of these queues' messages."""
        missing = [queue for queue in queues if queue not in self._by_queue]
        if self._for_all is None and (missing or not self._by_queue):
            if not self._by_queue:
                raise ConfigError("handler", None, "a function: decorate it with @consumer.handler")
            named = ", ".join(map(repr, missing))
            raise ConfigError("handler", None, f"one for {named}; plain @consumer.handler is for all others")
        handler = self._for_all if self._for_all is not None else next(iter(self._by_queue.values()))
        if self._by_queue:
            handler = _by_queue(self._by_queue, self._for_all)
        return around(handler, self._middleware)


def around(handler: Callable[..., Any], middleware: Sequence[Middleware]) -> Callable[..., Any]:
    """The handler within middleware, the first of it outermost."""
    for each in reversed(middleware):
        if is_async(each) != is_async(handler):
            kind = "an `async def`" if is_async(handler) else "a plain `def`"
            raise ConfigError("middleware", each, f"{kind}, as every handler is")
        handler = (_around_async if is_async(handler) else _around)(each, handler)
    return handler


def _around(middleware: Middleware, handler: Next) -> Next:
    return lambda message: middleware(message, handler)


def _around_async(middleware: Middleware, handler: Next) -> Next:
    async def run(message: Message) -> None:
        await middleware(message, handler)

    return run


def _by_queue(own: dict[str, Callable[..., Any]], for_all: Callable[..., Any] | None) -> Callable[..., Any]:
    """Each queue's own. On one event loop only if all are `async def`."""

    def choose(message: Message) -> Any:
        return own.get(message.queue, for_all)(message)  # type: ignore[misc]

    every = [*own.values(), *([for_all] if for_all is not None else [])]
    if not all(map(is_async, every)):
        return choose

    async def choose_async(message: Message) -> None:
        await choose(message)

    return choose_async


# --- what a function takes ---


def _taker(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a message, whatever the user's takes."""
    count = _counted(function, "handler")
    if count is None:
        return function
    if count not in (1, 2):
        allowed = "a function of one or two arguments, as in `def work(message)`"
        raise ConfigError("handler", function, f"{allowed}; this takes {count}")
    what = wanted(function)
    if count == 1 and what is Message:
        return function
    if count == 2 and _annotation(function, 1) not in (inspect.Parameter.empty, Message, Any, object):
        raise ConfigError("handler", function, "a function whose second argument is the Message")
    if count == 2 and what is Message:
        raise ConfigError("handler", function, "a type for its first argument, the body: bytes, dict, ...")
    return _decoding(function, bodies.decoder(what), with_message=count == 2)


def _decoding(
    function: Callable[..., Any], decode: Callable[[bytes], Any], with_message: bool
) -> Callable[..., Any]:
    if is_async(function):

        @functools.wraps(function)
        async def asynchronous(message: Message) -> None:
            value = decode(message.body)
            await (function(value, message) if with_message else function(value))

        return asynchronous

    def plain(message: Message) -> Any:
        value = decode(message.body)
        return function(value, message) if with_message else function(value)

    return plain


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None  # written in C, some of them: nobody knows


def _counted(function: Callable[..., Any], what: str) -> int | None:
    """How many arguments it wants; None: as many as it is given, or nobody knows."""
    if not callable(function):
        raise ConfigError(what, function, "a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(what, function, "a function that does not yield: nobody would run it")
    parameters = _parameters(function)
    if parameters is None or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    needed = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    if any(each.kind is each.KEYWORD_ONLY for each in needed):
        raise ConfigError(what, function, "a function without keyword arguments that have no default")
    places = [each for each in parameters if each.kind in _POSITIONAL]
    if len(needed) == 1 and len(places) > 1 and _annotation(function, 1) is Message:
        return 2
    return len(needed) or min(1, len(places))


def wanted(function: Callable[..., Any]) -> Any:
    """What a handler's first argument is annotated with; Message, if with nothing or if it may be one."""
    annotation = _annotation(function, 0)
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    if union and Message in typing.get_args(annotation):
        return Message
    return Message if annotation in (inspect.Parameter.empty, Any, object) else annotation


def _annotation(function: Callable[..., Any], place: int) -> Any:
    """What an argument is said to be; a name that cannot be looked up is no reason to refuse a Message."""
    places = [each for each in _parameters(function) or () if each.kind in _POSITIONAL]
    if place >= len(places):
        return inspect.Parameter.empty
    told = places[place].annotation
    if not isinstance(told, str):
        return told
    inner = inspect.unwrap(function)
    inner = getattr(inner, "func", inner)  # a partial's
    inner = inner if hasattr(inner, "__globals__") else getattr(inner, "__call__", inner)  # noqa: B004
    names = dict(getattr(inner, "__globals__", {}))
    free = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(inner, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):  # it is not filled yet
            names[name] = cell.cell_contents
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": told}), names)["it"]
    except Exception as error:
        if told.rpartition(".")[2] == "Message":
            return Message
        raise ConfigError(
            "handler", function, f"annotated with a name that the module knows, not {told!r} ({error})"
        ) from None
