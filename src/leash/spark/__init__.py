"""RabbitMQ queues as a replayable Spark source, and a Spark sink that waits for confirms.

source.py            what Spark calls to read queues      browse.py (a batch read that only looks)
sink.py              what Spark calls to publish          sink_rows.py (what each column means)
driver/              plans batches
task/                takes messages, and yields rows
staging/             the folder in between
streams/             the same for streams, by offset
offsets.py           the plan of a batch, in Spark's checkpoint
columns.py           the columns of source and sink
connections.py       connections, one per process and purpose
option_table.py      every option: default, check, documentation
option_values.py     texts to values
options.py           what the user gave, by the table
queue_options.py     `queue` and `queues`, `stream` and `streams`
budget_option.py     `budget`
settings.py          options as typed values, checked as a whole
loading.py           checked at `load()`
pipeline.py          `leash run`                          pipeline_file.py, toml_lines.py (its file)
pipeline_checks.py   what it asks the broker first        pipeline_progress.py (what it shows)
metrics.py           a query's metrics for Prometheus
functions.py         routing as column functions
"""
