"""Requests that write a namespace out, or fill an empty one."""

import secrets
import time
from collections.abc import Iterable, Iterator

from speedwell.fs.client.names.requests import Ask
from speedwell.fs.errors import NameserverUnavailable
from speedwell.fs.proto import speedwell_pb2 as pb

LOAD_BYTES = 256 << 10
"""Of records in one request."""
PATIENCE_SECONDS = 120.0
"""For a nameserver that answers nobody while it takes a namespace of millions of names."""


class NamespaceCopies:
    """`MetadataClient.copies`, whose docstring says what every method raises."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def dump(self) -> Iterator[pb.DumpReply]:
        """The whole namespace as it is now, part by part. Raises InvalidArgument if it lies still for a minute
        between two parts, or if the nameserver was started again meanwhile."""
        number, part, last = secrets.randbits(63) | 1, 0, False
        while not last:
            reply: pb.DumpReply = self._ask("Dump", pb.DumpRequest(dump=number, part=part))
            yield reply
            part, last = part + 1, reply.last

    def load(self, records: Iterable[pb.NamespaceRecord], next_inode: int) -> pb.LoadReply:
        """Fill the empty namespace with the records of a dump: with all, or with none if this raises.

        Raises DirectoryNotEmpty, InvalidArgument naming the record that does not fit, NameserverUnavailable if no
        answer came (then it is not known), and what `records` raises.
        """
        number, part = secrets.randbits(63) | 1, 0
        request, size = pb.LoadRequest(load=number), 0
        for record in records:
            request.records.append(record)
            size += record.ByteSize()
            if size >= LOAD_BYTES:
                self._ask("Load", request)
                part += 1
                request, size = pb.LoadRequest(load=number, part=part), 0
        request.last, request.next_inode = True, next_inode
        return self._finished(request)

    def _finished(self, request: pb.LoadRequest) -> pb.LoadReply:
        """The answer to the last part, with which the nameserver checks and writes everything."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                reply: pb.LoadReply = self._ask("Load", request)
                return reply
            except NameserverUnavailable:
                if time.monotonic() > deadline:
                    raise
