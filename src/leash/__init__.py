"""Leash: fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines."""

__version__ = "0.1.0"
