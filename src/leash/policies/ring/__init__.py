"""Where a key goes: RabbitMQ's consistent hashing, predicted exactly.

hashring.py       the ring: route, load, moves
hash_input.py     what a broker of a given version hashes, and as which Erlang term
hash_columns.py   whole columns of keys at once
phash.py          Erlang's phash2
jump.py           jump consistent hashing
fields.py         header values as Erlang terms
"""

from leash.policies.ring.hashring import KEEPS_ITS_RING, HashRing, HotKey, Load, Move, buckets
from leash.policies.ring.phash import phash2

__all__ = ["KEEPS_ITS_RING", "HashRing", "HotKey", "Load", "Move", "buckets", "phash2"]
