"""Where a content has holes, so that a copy of it can have them too."""

from collections.abc import Iterator

from speedwell.fs.client.context import ClientContext
from speedwell.fs.limits import MAX_HOLES
from speedwell.fs.proto.speedwell_pb2 import OK, TOKEN_REFUSED, Attributes, DataReply, DataRequest, HolesOperation
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame

ANSWER_SECONDS = 5.0


class Holes:
    """Of one content, whose holes stay where they are. One thread at a time."""

    def __init__(self, context: ClientContext, attributes: Attributes) -> None:
        self._context = context
        self._attributes = attributes
        self._holes: list[tuple[int, int]] = []
        self._begin = self._end = 0  # `_holes` are all that there are between

    def data(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """What is not in holes from `offset` up to `end`: begin and end of each piece. If no replica answers, that is
        everything."""
        while offset < end:
            if not self._begin <= offset < self._end:
                self._ask(offset, end)
            for begin, stop in self._holes:
                if begin > offset:
                    yield offset, min(begin, end)
                offset = max(offset, stop)
                if offset >= end:
                    return
            if offset < self._end:
                yield offset, min(self._end, end)
                offset = self._end

    def _ask(self, offset: int, end: int) -> None:
        operation = HolesOperation(file_id=self._attributes.file_id, offset=offset)
        self._holes, self._begin, self._end = [], offset, end
        for replica in self._context.near_first(self._attributes.replicas, self._attributes.file_id):
            try:
                channel = self._context.connection_to(replica)
                try:
                    channel.set_timeout(ANSWER_SECONDS)
                    channel.send(DataRequest(holes=operation, token=self._context.tokens.of(self._attributes)))
                    reply = channel.expect(DataReply)
                except BaseException:
                    channel.close()
                    raise
            except (ConnectionLost, MalformedFrame):
                self._context.note_failure(replica)
                continue
            self._context.connections.give_back(replica.host, replica.port, channel)
            if reply.status == TOKEN_REFUSED:
                self._context.tokens.refused(self._attributes)
            if reply.status == OK:
                self._holes = [(hole.offset, hole.offset + hole.length) for hole in reply.holes]
                if len(self._holes) >= MAX_HOLES:
                    self._end = self._holes[-1][1]
                return
