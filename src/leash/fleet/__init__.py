"""What many processes share: budgets, kept by the broker alone."""

from leash.fleet.budget import Budget

__all__ = ["Budget"]
