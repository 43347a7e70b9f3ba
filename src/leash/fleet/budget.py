"""A budget: what all processes that name it may do together."""

from __future__ import annotations

from dataclasses import dataclass

from leash.amqp.uri import Uri
from leash.fleet.terms import Terms
from leash.fleet.till import Till


@dataclass(frozen=True, slots=True)
class Budget(Terms):
    """A limit over every process that names it, kept by the broker; see docs/budgets.md.

    `Budget("sms", rate=50, burst=100)` lets at most `burst + rate * (t + lease)` start in any t seconds, over
    all processes together. `Budget("pdf", at_once=20)` lets at most 20 be at work at the same time. Give one
    to a `Queue`, to a `Consumer` or to a Spark query, or `open` it and `take` from it in any code.

    Arguments:
        name: What all processes call it: letters, digits, `.`, `_` and `-`.
        rate: Permits a `per`. Needed, unless `at_once` is given.
        burst: How many permits may be used at once after a pause. Default: those of one second, and at
            least 1. The smaller `burst / rate` is below a second, the less of the rate can be reached.
        per: Seconds that the rate is for. Default: 1.
        cost: What a message takes of it: "count" (the default: 1) or "header:<name>", a whole number in that
            header (1 without it).
        at_once: Instead of a rate: how many messages may be at work at the same time.
        lease: Seconds for which a permit is good, counted from when it was asked for. Default: 0.1. More
            than ten round trips to the broker; a longer one makes the bound wider.
    """

    def open(self, uri: str | Uri) -> Till:
        """For code that is no consumer: `with budget.open(uri) as sms: sms.take()`."""
        return Till(self, uri)
