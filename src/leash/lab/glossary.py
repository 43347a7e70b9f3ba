"""The words of the reports, for readers who know RabbitMQ and nothing about Leash."""

from __future__ import annotations

import html
from collections.abc import Iterable

WORDS = {
    "published": "the figure that a document about RabbitMQ states",
    "simulated": "the same experiment in virtual time, with Leash's own policies and a model of the broker",
    "measured": "the same experiment on a real broker, with the real consumer",
    "bounds": "what a figure must keep to pass; a figure outside them is red and counts as a miss",
    "lane": "one queue as the consumer sees it: its buffer, its share and its limits",
    "quantum": "a queue's weight: how much it may take in one round; 40 gets ten times as much as 4",
    "round": "one turn for every queue",
    "share": "a queue's part of all handled messages; its target: its quantum by the sum of all quanta",
    "spread": "how many rounds lie between the queue furthest ahead and the one furthest behind",
    "prefetch": "how many messages the broker may send before the first is acknowledged; 0 is no limit",
    "window": "the prefetch of one queue, which Leash may change while it runs",
    "autopilot": "Leash sets the window by itself, from the measured round trip and the time the work takes",
    "round trip": "the time from an acknowledgement until the next message arrives from the broker",
    "CoDel": "a rule that acts when messages have waited too long for too long, and not on a short burst",
    "nack": "a message is returned to its queue; the broker sends it again at once",
    "rate and burst": "never more than burst + rate * t messages in any time t",
    "slot": "one of a fixed number of parts that keys are hashed to; a queue owns some of them",
    "tenant": "one of many customers whose messages come through the same exchange",
    "p99": "99 of 100 messages were faster than this",
    "stream": "a log in RabbitMQ: reading takes nothing away, so it can be read again",
}


def section(words: Iterable[str]) -> str:
    """The HTML of a glossary with these words."""
    items = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(WORDS[word])}</dd>" for word in words)
    return f'<section id="words"><h2>Words</h2><dl class="words">{items}</dl></section>'
