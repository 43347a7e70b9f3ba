"""RabbitMQ queues as a replayable Spark source, and a Spark sink that waits for confirms."""
