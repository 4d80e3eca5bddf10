"""Speedwell's client library: `Client`, and the `Reader` and `Appender` it opens.

docs/python-api.md says what is stable.
"""

from speedwell.fs.client.append.appender import Appender
from speedwell.fs.client.change.version import Changes
from speedwell.fs.client.client import Client
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.read.reader import Reader
from speedwell.fs.client.read.steering import SteeredRead
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes, DirectoryEntry

__all__ = ["DIRECTORY", "REGULAR", "SYMBOLIC_LINK", "Appender", "Attributes", "Changes", "Client", "DirectoryEntry",
           "Metrics", "Reader", "SteeredRead"]
