"""Publishing for users: confirmed, reconnecting, from many threads or from an event loop.

`leash.amqp.Publisher` is the part of the wire client that the consumer and the Spark sink use: one channel,
no reconnecting.
"""

from leash.publisher.publisher import Publisher
from leash.publisher.sent import Receipt, Sent

__all__ = ["Publisher", "Receipt", "Sent"]
