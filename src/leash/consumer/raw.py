"""A delivery as the connection's reader leaves it: a tuple, for speed, whose places have names."""

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
"""Their bytes."""
BODY: Final = 5
LINK: Final = 6
"""The channel that it came by."""
ARRIVED: Final = 7
"""In ns."""
