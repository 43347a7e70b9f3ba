"""What many processes share, kept by the broker alone.

budgets/   a limit over all processes
tenants/   the lanes of tenants
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.fleet.budgets.budget import Budget

if TYPE_CHECKING:
    from leash.fleet.tenants.tenants import Tenants
else:

    def __getattr__(name: str) -> object:
        # Only users of tenants pay for importing numpy.
        if name == "Tenants":
            from leash.fleet.tenants.tenants import Tenants

            return Tenants
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Budget", "Tenants"]
