"""Publishing for users: confirmed, reconnecting, from many threads or from an event loop.

`leash.amqp.Publisher` is the part of the wire client that the consumer and the Spark sink use: one channel,
no reconnecting.

publisher.py     the front door
drafts.py        what users give, made into messages
sent.py          one message on its way
unconfirmed.py   what is on its way: sent again, or given up
verdicts.py      what the broker's answers mean
writer.py        the thread that connects and writes
tally.py         many messages: which are confirmed
"""

from leash.publisher.publisher import Publisher
from leash.publisher.sent import Receipt, Sent

__all__ = ["Publisher", "Receipt", "Sent"]
