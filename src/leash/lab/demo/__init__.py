"""`leash demo`: the same load without Leash and with it, a replay from a stream, and a report of it all.

demo        the order of events; the report is written whatever happens
load        what is in the queues, and which broker they are on
plain       without Leash: an ordinary consumer
pipeline    with Leash: the Spark pipeline, and why it stands still if it does
replay      the result in a stream, read twice
tables      what the terminal shows
page        the report
"""

from leash.lab.demo.demo import run
from leash.lab.demo.load import Load

__all__ = ["Load", "run"]
