"""Partitions: one flow of messages over several queues by key, so that work is parallel and keys in order."""

from leash.partitions.layout import Layout
from leash.partitions.partitions import Partitions, check, read
from leash.partitions.plan import Plan

__all__ = ["Layout", "Partitions", "Plan", "check", "read"]
