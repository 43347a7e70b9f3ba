"""Streams and super streams on Spark: offsets make reading a pure function, so there is nothing to stage.

source.py             what Spark calls to read
driver.py             plans a batch of ranges
offsets.py            the plan, in Spark's checkpoint
positions.py          where each stream stands; lost messages noticed
batch.py              what a batch read reads
read.py               one range, in a task                 rows.py (its rows)
sink.py               what Spark calls to publish          messages.py (rows to messages)
publish_once.py       each row once to one stream          ids.py (the ids that make it so)
pinned_partitions.py  which partitions a retried batch goes to
links.py              connections to the streams' leaders
columns.py            the columns
settings.py           options as typed values
"""
