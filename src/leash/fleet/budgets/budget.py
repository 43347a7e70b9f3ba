"""A budget: what all processes that name it may do together."""

from __future__ import annotations

from dataclasses import dataclass

from leash.amqp.uri import Uri
from leash.fleet.budgets.open_budget import Till
from leash.fleet.budgets.settings import Terms


@dataclass(frozen=True, slots=True)
class Budget(Terms):
    """A limit over every process that names it, kept by the broker; see docs/budgets.md.

    `Budget("sms", rate=50, burst=100)` lets at most `burst + rate * (t + lease)` messages start in any t
    seconds, over all processes. `Budget("pdf", at_once=20)` lets at most 20 be worked on at the same time.
    Give one to a `Queue`, a `Consumer` or a Spark query, or `open` it and `take` from it in any code.

    Arguments:
        name: What all processes call it: letters, digits, `.`, `_` and `-`.
        rate: Permits per `per` seconds. Required, unless `at_once` is given.
        burst: How many permits may be used at once after a pause. Default: one second's worth, and at
            least 1. If `burst / rate` is less than a second, less of the rate can be reached.
        per: The seconds that `rate` refers to. Default: 1.
        cost: The permits that a message takes: "count" (the default: 1) or "header:<name>", the whole number
            in that header (1 without it).
        at_once: How many messages may be worked on at the same time, instead of a rate. Default: None.
        lease: Seconds for which a permit is valid, from when it was asked for. Default: 0.1. Use more than
            ten round trips to the broker; a longer lease makes the bound wider.
    """

    def open(self, uri: str | Uri, name: str = "", *, report: bool = True) -> Till:
        """Open it for code outside a consumer: `with budget.open(uri) as sms: sms.take()`.

        `name`: what the broker's list of connections and `leash page` call it. `report`: False tells
        `leash page` nothing of what is taken.
        """
        return Till(self, uri, name, report=report)
