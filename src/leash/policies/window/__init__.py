"""How much credit a lane needs.

autopilot.py   the window that tunes itself
credit.py      the formulas
tally.py       what an epoch showed
payoff.py      whether the last step helped
sharing.py     one limit, divided among many windows
"""

from leash.policies.window.autopilot import Change, Window, spell
from leash.policies.window.credit import prefetch_window

__all__ = ["Change", "Window", "prefetch_window", "spell"]
