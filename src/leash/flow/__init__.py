"""Lanes and policies together: arrivals, completions and time in; decisions out. Pure."""

from leash.flow.budgets import Purse
from leash.flow.decisions import Ask, Decision, Dispatch, Probe, SetWindow, Shed
from leash.flow.flow import Flow
from leash.flow.lane import Lane

__all__ = ["Ask", "Decision", "Dispatch", "Flow", "Lane", "Probe", "Purse", "SetWindow", "Shed"]
