"""What kind of queue it is. AMQP has no question for that, but an error that tells.

Declaring an existing queue with other arguments changes nothing: the broker refuses and names the first
argument that differs, and what it is. Asked again with that corrected, it names the next one, until the
declaration fits.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from leash.amqp import Connection, topology
from leash.errors import ChannelError, PreconditionFailed

log = logging.getLogger(__name__)

_DIFFERS = re.compile(
    r"inequivalent arg '([^']+)' .* but current is (?:the value '(.*)' of type '(\w+)'|'(\w+)'|none)"
)
_MOST = 30  # arguments a queue can have


def traits(link: Connection, queue: str) -> dict[str, Any] | None:
    """The arguments of an existing queue; None if this user may not ask."""
    flags = {"durable": True, "auto_delete": False}
    arguments: dict[str, Any] = {}
    for _ in range(_MOST):
        try:
            with link.channel() as channel:
                topology.state(channel, queue)  # never create one by asking
                durable, auto_delete = flags["durable"], flags["auto_delete"]
                topology.declare_queue(
                    channel, queue, durable=durable, auto_delete=auto_delete, arguments=arguments
                )
            return arguments
        except PreconditionFailed as error:
            found = _DIFFERS.search(error.text)
            if found is None:
                log.info("queue %r could not be inspected: %s", queue, error)
                return None
            name, value, kind, flag = found.groups()
            if name in flags:
                flags[name] = flag == "true"
            elif kind is None:
                arguments.pop(name, None)
            else:
                arguments[name] = _value(value, kind)
        except ChannelError as error:
            log.info("queue %r could not be inspected: %s", queue, error)
            return None
    return None


def _value(text: str, kind: str) -> Any:
    if kind == "bool":
        return text == "true"
    return text if kind == "longstr" else int(text)
