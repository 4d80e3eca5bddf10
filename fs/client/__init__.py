"""Speedwell's client library: `Client`, and the `Reader` and `Appender` it opens."""

from fs.client.appender import Appender
from fs.client.client import Client
from fs.client.metrics import Metrics
from fs.client.reader import Reader
from fs.client.steering import SteeredRead

__all__ = ["Appender", "Client", "Metrics", "Reader", "SteeredRead"]
