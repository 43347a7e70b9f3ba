"""What a task does for its split: take messages, stage and seal them, ack, yield rows.

read.py              the seal of a split, and its rows
attempt.py           stage, seal, ack
taking.py            messages of a queue                  ordered.py (the same, in order)
held_messages.py     a consumer, and what it holds unsettled
rescuing.py          copies of what came back too often
dedup.py             finds copies of staged rows
partitioned.py       gates and markers
records.py           what attempts tell each other
rows.py              staged columns to Spark's rows
"""
