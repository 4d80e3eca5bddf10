"""Speedwell's client library: `Client`, and the `Reader` and `Appender` it opens."""

from fs.client.appender import Appender
from fs.client.client import Client
from fs.client.metrics import Metrics
from fs.client.reader import Reader
from fs.client.steering import SteeredRead
from fs.client.version import Changes

__all__ = ["Appender", "Changes", "Client", "Metrics", "Reader", "SteeredRead"]
