"""Lanes and policies together: arrivals, completions and time in; decisions out. Pure."""

from leash.flow.decisions import Decision, Dispatch, Probe, SetWindow, Shed
from leash.flow.flow import Flow
from leash.flow.lane import Lane

__all__ = ["Decision", "Dispatch", "Flow", "Lane", "Probe", "SetWindow", "Shed"]
