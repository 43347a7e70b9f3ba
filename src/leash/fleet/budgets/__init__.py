"""Budgets: a limit over all processes that name it, kept by the broker alone.

budget.py            what users see                       settings.py (its arguments, checked)
open_budget.py       a budget in any code: `take`, `hold`
permit_thread.py     the thread that fetches permits
take_tokens.py       tokens asked for, taken, returned
rate_to_tokens.py    how many tokens, and what each is worth
lifecycle.py         created, replaced, changed, deleted
state_at_broker.py   the queues' names, and the card that says which wheel is in force
token_census.py      are all tokens there
reporting.py         reports to the fleet, of code outside a consumer
"""
