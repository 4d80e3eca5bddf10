"""Speedwell's client library: `Client`, and the `Reader` and `Appender` it opens.

docs/python-api.md says what is stable.
"""

from fs.client.appender import Appender
from fs.client.client import Client
from fs.client.metrics import Metrics
from fs.client.reader import Reader
from fs.client.steering import SteeredRead
from fs.client.version import Changes
from fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes, DirectoryEntry

__all__ = ["DIRECTORY", "REGULAR", "SYMBOLIC_LINK", "Appender", "Attributes", "Changes", "Client", "DirectoryEntry",
           "Metrics", "Reader", "SteeredRead"]
