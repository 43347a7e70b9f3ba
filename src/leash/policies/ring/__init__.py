"""Where a key goes: RabbitMQ's consistent hashing, predicted exactly.

hashring.py   the ring: route, load, moves
phash.py      Erlang's phash2
jump.py       jump consistent hashing
terms.py      which term a broker of a given version hashes
fields.py     header values as Erlang terms
keys.py       whole columns of keys at once
"""

from leash.policies.ring.hashring import KEEPS_ITS_RING, HashRing, HotKey, Load, Move, buckets
from leash.policies.ring.phash import phash2

__all__ = ["KEEPS_ITS_RING", "HashRing", "HotKey", "Load", "Move", "buckets", "phash2"]
