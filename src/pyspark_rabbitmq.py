"""Spark finds this module by its name and takes `format("rabbitmq")` from it; it imports it in every
session."""

from leash.spark.source import RabbitMQ as DefaultSource

__all__ = ["DefaultSource"]
