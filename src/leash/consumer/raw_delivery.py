"""A delivery as the connection's reader leaves it: a tuple, for speed, with named indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leash.consumer.link import Link

Raw = tuple[int, bool, str, str, bytes, bytes, "Link", int]

TAG: Final = 0
"""The broker's delivery tag."""
REDELIVERED: Final = 1
EXCHANGE: Final = 2
ROUTING_KEY: Final = 3
PROPERTIES: Final = 4
"""The encoded properties."""
BODY: Final = 5
LINK: Final = 6
"""The link that delivered it."""
ARRIVED: Final = 7
"""When it arrived, in ns."""
