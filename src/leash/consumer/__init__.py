"""The live consumer: many queues, one fair pool of workers, each message settled exactly once."""

from leash.consumer.consumer import Consumer
from leash.consumer.message import Message
from leash.consumer.settings import Queue, Retry
from leash.consumer.stats import QueueStats, Stats

__all__ = ["Consumer", "Message", "Queue", "QueueStats", "Retry", "Stats"]
