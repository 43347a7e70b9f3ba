"""Every error that Leash raises, in one tree.

    LeashError
    ├── ConfigError             a value that you gave: names the argument, the value and what is allowed
    ├── BrokerError             the private RabbitMQ node could not be started, stopped or asked
    ├── TopologyError           partitions or tenants that are missing, something else, or cannot be changed
    ├── NotDrained              a consumer stopped before all its messages were finished
    ├── BudgetError             a budget that cannot be created, found, changed or used as asked
    ├── NeverSettled            why a message was parked from which no handler ever returned
    ├── Undecodable             why a message was parked whose body is not what its handler asked for
    ├── SparkError              the Spark source
    │   ├── QueueMissing            a queue to read does not exist, or no longer
    │   ├── QueueHeld               another consumer holds the queue
    │   ├── CannotRescue            looking on would let the broker drop messages
    │   ├── OffsetError             offsets that do not follow each other, or of another version
    │   ├── StagingMismatch         checkpoint and staging folder do not belong together
    │   ├── StagingError            staged data that is missing, damaged, or cannot be written
    │   ├── RowsChanged             a retried batch with other rows than a stream has of it
    │   └── Fenced                  an attempt that is too late, or looks at another folder
    ├── LabTimeout              a live run of the lab did not end
    ├── Unfinished              a rehearsal ended with work left
    └── AmqpError
        ├── ProtocolError       bytes that are not AMQP 0-9-1
        ├── ConnectError        no usable connection could be made
        │   ├── HostUnreachable         refused, unknown name, or no answer in time
        │   ├── AuthenticationError     the broker refused the credentials
        │   ├── VirtualHostError        the virtual host is missing or closed to this user
        │   └── TlsError                certificate or TLS handshake
        │       └── TlsRequired         a plain connection to a TLS port
        ├── ConnectionLost      an open connection ended, whoever ended it
        ├── ReplyTimeout        no answer to a request on an open connection
        ├── Interrupted         a Spark task's consumer was taken away: to be tried again
        ├── ChannelError        the broker closed a channel (any other code)
        │   ├── AccessRefused           403
        │   ├── NotFound                404
        │   ├── ResourceLocked          405
        │   └── PreconditionFailed      406
        ├── StreamError         what the broker says about a stream, or what is in one
        │   ├── StreamMissing           there is none of that name
        │   ├── StreamExists            there is one already
        │   ├── StreamUnavailable       no leader or no member there, for now
        │   ├── StreamRefused           closed to this user
        │   ├── StreamUnsupported       more than this broker can do
        │   ├── DataLost                what was to be read is gone: truncated, overtaken, or made again
        │   └── ChunkError              a chunk that is damaged, or that nobody can read
        └── PublishError        no confirm arrived; `in_doubt`: the message may be there all the same
            ├── PublishBlocked          the broker is under a resource alarm
            ├── NotSent                 it never left this process
            ├── InDoubt                 it was sent, and nobody knows whether the broker has it
            ├── PartlyPublished         some of many messages failed; which and why is in `failures`
            └── Rejected                some messages were not taken; they are in `messages`
                ├── Nacked                  the broker said so
                └── Unroutable              mandatory, and no queue for the routing key

An error never contains a password.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leash.wording import refused


class LeashError(Exception):
    """The root of the tree."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled with its text and its attributes, whatever its constructor takes."""
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigError(LeashError, ValueError):
    """An argument or option that cannot be used."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(refused(argument, value, allowed))
        self.argument = argument
        self.value = value


class BrokerError(LeashError):
    """The private RabbitMQ node could not be started, stopped or asked."""


class TopologyError(LeashError):
    """Partitions or tenants that are missing, are something else, or cannot be changed now."""


class NotDrained(LeashError):
    """A consumer had to leave before its handlers were through."""

    def __init__(self, drain: float, in_work: int, unconfirmed: int) -> None:
        super().__init__(
            f"drain={drain:g} s ran out; messages left: {in_work + unconfirmed} ({in_work} with handlers, "
            f"{unconfirmed} whose copies are not confirmed). The broker delivers them again"
        )
        self.in_work = in_work
        self.unconfirmed = unconfirmed


class BudgetError(LeashError):
    """A budget that cannot be created, found, changed or used as asked."""


class NeverSettled(LeashError):
    """A message that was redelivered many times, and whose consumer ended each time without settling it."""

    def __init__(self, deliveries: int, alone: int | None) -> None:
        also = "" if alone is None else f", the last {alone} times with a handler at work on it"
        super().__init__(
            f"delivered {deliveries} times and never settled{also}: the process or its connection ended"
        )


class SparkError(LeashError):
    """An error of the Spark source."""


class QueueMissing(SparkError):
    """A queue to read does not exist, or no longer."""


class QueueHeld(SparkError):
    """Another consumer holds the queue."""


class CannotRescue(SparkError):
    """Looking on would let the broker drop messages."""


class OffsetError(SparkError):
    """A checkpoint whose offsets do not follow each other, or that another version wrote."""


class StagingMismatch(SparkError):
    """Checkpoint and staging folder do not belong together."""


class StagingError(SparkError):
    """Staged data that is missing, damaged, or from another version."""


class RowsChanged(SparkError):
    """A retried batch brings other rows than the stream has of it, or comes too late."""


class Fenced(SparkError):
    """This attempt may not consume: its batch is over, or its staging folder is not the driver's."""


class LabTimeout(LeashError):
    """A live run of the lab did not end."""


class Unfinished(LeashError, AssertionError):
    """There was still work when the time given to `Rehearsal.run` was over."""


class AmqpError(LeashError):
    """An error between a client and a broker."""


class ProtocolError(AmqpError):
    """Malformed or unexpected bytes."""


class ConnectError(AmqpError):
    """No usable connection could be made."""


class HostUnreachable(ConnectError):
    """Refused, unknown name, or no answer in time."""


class AuthenticationError(ConnectError):
    """The broker refused the credentials."""


class VirtualHostError(ConnectError):
    """The virtual host is missing, or closed to this user."""


class TlsError(ConnectError):
    """The certificate or the TLS handshake failed."""


class TlsRequired(TlsError):
    """A plain connection to a TLS port."""


class ConnectionLost(AmqpError):
    """An open connection ended."""


class ReplyTimeout(AmqpError):
    """No answer to a request on an open connection."""


class Interrupted(AmqpError):
    """The broker ended a Spark task's consumer, or its messages do not fit: to be tried again."""


class ChannelError(AmqpError):
    """The broker closed a channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text

    @staticmethod
    def of(code: int, text: str) -> ChannelError:
        """An error of the class for a reply code."""
        return _BY_CODE.get(code, ChannelError)(code, text)


class AccessRefused(ChannelError):
    """403: this user may not do that."""


class NotFound(ChannelError):
    """404: the queue or exchange does not exist."""


class ResourceLocked(ChannelError):
    """405: another connection has the queue for itself."""


class PreconditionFailed(ChannelError):
    """406: for example, a queue exists with other arguments."""


_BY_CODE: dict[int, type[ChannelError]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


class StreamError(AmqpError):
    """What the broker says about a stream, or what is in one; `code` is the protocol's, or 0."""

    def __init__(self, stream: str, text: str, code: int = 0) -> None:
        super().__init__(f"stream {stream!r}: {text}" + (f" ({code})" if code else ""))
        self.stream = stream
        self.code = code


class StreamMissing(StreamError):
    """There is no stream of that name."""


class StreamExists(StreamError):
    """There is a stream of that name already, with other arguments."""


class StreamUnavailable(StreamError):
    """It has no leader, or no member there, for now: to be tried again."""


class StreamRefused(StreamError):
    """It is closed to this user."""


class StreamUnsupported(StreamError):
    """More than this broker can do."""


class DataLost(StreamError):
    """What was to be read is gone: offset `expected` should have come, and `first` is the first there is."""

    def __init__(self, stream: str, expected: int, first: int, why: str) -> None:
        super().__init__(stream, f"{why}: expected offset {expected}, and the first there is {first}")
        self.expected = expected
        self.first = first


class ChunkError(StreamError):
    """A chunk that is damaged, or that nobody can read; `chunk` is its first offset."""

    def __init__(self, stream: str, chunk: int, text: str) -> None:
        super().__init__(stream, f"chunk at offset {chunk}: {text}")
        self.chunk = chunk


class PublishError(AmqpError):
    """No confirm arrived: for `messages`, if that is known; then all others were taken."""

    messages: list[object] | None = None
    in_doubt: bool = True
    """True if the message may be there all the same. False: it is not, and can be published again safely."""


class NotSent(PublishError):
    """It never left this process: not in time, or the publisher was closed."""

    in_doubt = False


class InDoubt(PublishError):
    """It was sent, and no confirm came: it may be there or not."""


class PartlyPublished(PublishError):
    """Some of many messages failed. All others were confirmed."""

    def __init__(self, confirmed: int, failures: Mapping[int, Exception]) -> None:
        first = next(iter(failures.values()))
        super().__init__(f"{len(failures)} messages failed, {confirmed} were confirmed; the first: {first}")
        self.confirmed = confirmed
        self.failures = dict(failures)
        """By the place of each message among those that were given."""
        self.in_doubt = any(getattr(each, "in_doubt", False) for each in failures.values())


class Undecodable(LeashError, ValueError):
    """A body that is not what a handler asked for: it is parked at once."""


class Rejected(PublishError):
    """Some messages were not taken: those in `messages`. All others were."""

    messages: list[object]
    in_doubt = False

    def __init__(self, text: str, messages: Sequence[object] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class Nacked(Rejected):
    """The broker refused messages."""


class Unroutable(Rejected):
    """A mandatory message found no queue."""


class PublishBlocked(PublishError):
    """The broker blocks publishers because of a resource alarm."""


def _rebuild(cls: type[Exception], args: tuple[object, ...], state: dict[str, object]) -> Exception:
    """Unpickle without calling the constructor: Spark passes errors between processes."""
    error = cls.__new__(cls, *args)  # which sets `args`
    error.__dict__.update(state)
    return error
