"""Every error that Leash raises, in one tree.

    LeashError
    ├── ConfigError             a value that you gave: names the argument, the value and what is allowed
    ├── BrokerError             the private RabbitMQ node could not be started, stopped or asked
    ├── TopologyError           partitions that are missing, are something else, or cannot be changed now
    ├── BudgetError             a budget that cannot be made, found, changed or used as it was asked for
    ├── NeverSettled            why a message was parked that no handler ever came back from
    ├── SparkError              the Spark source
    │   ├── QueueMissing            a queue to read does not exist, or no longer
    │   ├── QueueHeld               another consumer has the queue, and does not go
    │   ├── CannotRescue            looking on would let the broker drop messages
    │   ├── OffsetError             offsets that do not follow each other, or of another version
    │   ├── StagingMismatch         checkpoint and staging folder do not belong together
    │   ├── StagingError            staged data that is missing, damaged, or cannot be written
    │   └── Fenced                  an attempt that came too late, or looks at another folder
    ├── LabTimeout              a live run of the lab did not end
    ├── Unfinished              a rehearsal had still work to do
    └── AmqpError
        ├── ProtocolError       bytes that are not AMQP 0-9-1
        ├── ConnectError        no usable connection came about
        │   ├── HostUnreachable         refused, unknown name, or no answer in time
        │   ├── AuthenticationError     the broker refused the credentials
        │   ├── VirtualHostError        the virtual host is missing or closed to this user
        │   └── TlsError                certificate or TLS handshake
        │       └── TlsRequired         a plain connection to a TLS port
        ├── ConnectionLost      an open connection ended, whoever ended it
        ├── ReplyTimeout        an open connection, and no answer to a request
        ├── Interrupted         a Spark task's consumer was taken away: to be tried again
        ├── ChannelError        the broker closed a channel (any other code)
        │   ├── AccessRefused           403
        │   ├── NotFound                404
        │   ├── ResourceLocked          405
        │   └── PreconditionFailed      406
        └── PublishError        no confirm came
            ├── PublishBlocked          the broker is under a resource alarm
            └── Rejected                some messages were not taken; they are in `messages`
                ├── Nacked                  the broker said so
                └── Unroutable              mandatory, and no queue for the routing key

An error never contains a password.
"""

from __future__ import annotations

from collections.abc import Sequence


class LeashError(Exception):
    """The root of the tree."""


class ConfigError(LeashError, ValueError):
    """An argument or option that cannot be used."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(f"{argument}={value!r}: {allowed}")
        self.argument = argument
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class BrokerError(LeashError):
    """The private RabbitMQ node."""


class TopologyError(LeashError):
    """Partitions that are missing, are something else, or cannot be changed now."""


class BudgetError(LeashError):
    """A budget that cannot be made, found, changed or used as it was asked for."""


class NeverSettled(LeashError):
    """A message that was delivered again and again, and whoever had it went away without settling it."""

    def __init__(self, deliveries: int, alone: int | None) -> None:
        also = "" if alone is None else f", the last {alone} times with a handler at work on it"
        super().__init__(
            f"delivered {deliveries} times and never settled{also}: the process or its connection ended"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class SparkError(LeashError):
    """The Spark source."""


class QueueMissing(SparkError):
    """A queue to read does not exist, or no longer."""


class QueueHeld(SparkError):
    """Another consumer has the queue, and does not go."""


class CannotRescue(SparkError):
    """Looking on would let the broker drop messages."""


class OffsetError(SparkError):
    """A checkpoint whose offsets do not follow each other, or that another version wrote."""


class StagingMismatch(SparkError):
    """Checkpoint and staging folder do not belong together."""


class StagingError(SparkError):
    """Staged data that is missing, damaged, or from another version."""


class Fenced(SparkError):
    """This attempt may not consume: its batch is over, or it looks at another folder than the driver."""


class LabTimeout(LeashError):
    """A live run of the lab did not end."""


class Unfinished(LeashError, AssertionError):
    """There was still work when the time that `Rehearsal.run` was given was over."""


class AmqpError(LeashError):
    """Anything between us and a broker."""


class ProtocolError(AmqpError):
    """Malformed or unexpected bytes."""


class ConnectError(AmqpError):
    """No usable connection came about."""


class HostUnreachable(ConnectError):
    """Refused, unknown name, or no answer in time."""


class AuthenticationError(ConnectError):
    """The broker refused the credentials."""


class VirtualHostError(ConnectError):
    """The virtual host is missing, or closed to this user."""


class TlsError(ConnectError):
    """Certificate or TLS handshake."""


class TlsRequired(TlsError):
    """A plain connection to a TLS port."""


class ConnectionLost(AmqpError):
    """An open connection ended."""


class ReplyTimeout(AmqpError):
    """An open connection, and no answer to a request."""


class Interrupted(AmqpError):
    """The broker took the consumer away, or what came does not fit: to be tried again."""


class ChannelError(AmqpError):
    """The broker closed a channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    @staticmethod
    def of(code: int, text: str) -> ChannelError:
        """The class that stands for a reply code."""
        return _BY_CODE.get(code, ChannelError)(code, text)


class AccessRefused(ChannelError):
    """403."""


class NotFound(ChannelError):
    """404."""


class ResourceLocked(ChannelError):
    """405."""


class PreconditionFailed(ChannelError):
    """406."""


_BY_CODE: dict[int, type[ChannelError]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


class PublishError(AmqpError):
    """No confirm came, for `messages` if it is known for which; then all others were taken."""

    messages: list[object] | None = None


class Rejected(PublishError):
    """Some messages of a batch, which `messages` holds, were not taken; all others were."""

    messages: list[object]

    def __init__(self, text: str, messages: Sequence[object] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class Nacked(Rejected):
    """The broker refused messages."""


class Unroutable(Rejected):
    """A mandatory message found no queue."""


class PublishBlocked(PublishError):
    """The broker blocks publishers: a resource alarm."""


def _rebuild(cls: type[Exception], args: tuple[object, ...], state: dict[str, object]) -> Exception:
    """Unpickle past a constructor of another shape: Spark carries errors between processes."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
