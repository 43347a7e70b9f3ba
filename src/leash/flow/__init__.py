"""Lanes and policies together: arrivals, completions and time in; decisions out. Pure.

flow.py                  what may be told and asked       decisions.py (what it answers)
lane.py                  one lane: settings and state
adding_lanes.py          a lane that comes later
picking.py               whose turn it is
buffer_to_worker.py      messages leave their lane, or come back
unbuffered_messages.py   messages that never were in a lane's buffer
service_times.py         how long work takes, and what it costs
sidelined_lanes.py       lanes that sit out, and when they go on
hold_states.py           a round waits for a lane
slow_lanes.py            half of the workers for the others
failing_lanes.py         one message at a time while a handler fails
tier_gaps.py             when a lower tier may work
depths.py                when to ask how deep a queue is
windows.py               the windows of lanes             buffer.py (the limit of them all)
shedding.py              a standing delay acted upon
budgets.py               permits shared with other processes
fairness.py              the certificate
"""

from leash.flow.budgets import Purse
from leash.flow.decisions import Ask, Decision, Dispatch, Probe, SetWindow, Shed
from leash.flow.flow import Flow
from leash.flow.lane import Lane

__all__ = ["Ask", "Decision", "Dispatch", "Flow", "Lane", "Probe", "Purse", "SetWindow", "Shed"]
