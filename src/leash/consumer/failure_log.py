"""What the log says of a failed message, and what becomes of it."""

from __future__ import annotations

from leash.consumer.message import Message
from leash.consumer.settings import OnExhausted
from leash.errors import LeashError
from leash.logfmt import logger

log = logger("leash.consumer")

_GIVEN_UP: dict[OnExhausted, str] = {"park": "parked", "reject": "rejected", "discard": "discarded"}


def failed(message: Message, error: BaseException, tries: int, most: int, then: str) -> None:
    log.warning(
        "event=handler_failed message_id=%r queue=%r error=%r tries=%d of=%d then=%r",
        message_id(message),
        message.queue,
        error,
        tries,
        most,
        then,
    )


def retried(wait: int | None) -> str:
    """It is tried again after so many milliseconds; None: its queue decides when."""
    return "retried when its queue delivers it" if wait is None else f"retried in {wait / 1000:g} s"


def given_up(on_exhausted: OnExhausted) -> str:
    """There is no other try, whether tries are left or not."""
    return _GIVEN_UP[on_exhausted]


def excused(message: Message, error: BaseException) -> None:
    log.warning(
        "event=handler_failed message_id=%r queue=%r error=%r excused=%r",
        message_id(message),
        message.queue,
        error,
        "the breaker is open: this try does not count",
    )


def after_settling(message: Message, error: BaseException) -> None:
    log.warning(
        "event=failed_after_settling message_id=%r queue=%r error=%r tries=%d",
        message_id(message),
        message.queue,
        error,
        message.tries + 1,
    )


def message_id(message: Message) -> str | None:
    """What its publisher calls it, if it has a name and headers that can be read."""
    try:
        return message.properties.message_id
    except LeashError:
        return None
