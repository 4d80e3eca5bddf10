"""Receiving a range of a file from its replicas, whatever happens to them."""

import logging
import socket
from collections import deque

from fs.channel import Channel, ConnectionLost, MalformedFrame, connect
from fs.client.context import ClientContext
from fs.client.steering import SteeredRead
from fs.errors import FileClosed, NoReplicaAvailable, ReadFailed, SpeedwellError, StaleFile
from fs.proto.speedwell_pb2 import NOT_FOUND, OK, Attributes, DataReply, DataRequest, ReadOperation, Replica

log = logging.getLogger(__name__)


class RangeReceiver:
    """The bytes from `offset` up to `stop`, in order, by one thread at a time.

    The controller places the range if `steer` and it is worth it. When a replica fails, the rest comes from
    another; once all have failed, the replicas are looked up again and each gets one more chance.
    With `short` the range may end early, at the end that the replica knows; otherwise a replica that holds
    less is out of date, and another one is taken.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, offset: int, stop: int, *,
                 steer: bool = False, short: bool = False) -> None:
        self.position = offset
        self.stop = stop
        self.current: SteeredRead | None = None
        self.file_size = attributes.size
        self._context = context
        self._attributes = attributes
        self._replicas = list(attributes.replicas)
        self._steer = steer and context.steering is not None
        self._short = short
        self._channel: Channel | None = None
        self._replica: Replica | None = None
        self._part_stop = offset
        self._parts: deque[SteeredRead] = deque()
        self._read_id: str | None = None
        self._excluded: set[str] = set()
        self._tried: list[str] = []
        self._reached_any = False
        self._missing = 0
        self._looked_up_again = False
        self._closed = False

    def receive_into(self, view: memoryview, flags: int = 0) -> int:
        """Receive at least one byte into `view`; 0 only at `stop`.

        Raises NoReplicaAvailable (none could be reached), ReadFailed (none could deliver), StaleFile
        (none has the content any more); their messages say what was tried.
        """
        while view:
            channel = self.ready()
            if channel is None:
                return 0
            try:
                received = channel.socket.recv_into(view, min(self.available, len(view)), flags)
            except OSError as error:
                self.failed(str(error))
                continue
            if not received:
                self.failed("closed the connection in the middle")
                continue
            self.advance(received)
            return received
        return 0

    def receive_all(self, view: memoryview) -> int:
        """Fill `view` as far as the range goes and return how many bytes that is."""
        filled = 0
        while filled < len(view):
            received = self.receive_into(view[filled:], socket.MSG_WAITALL)
            if not received:
                break
            filled += received
        return filled

    @property
    def available(self) -> int:
        """How many bytes the connection that `ready` gave still delivers."""
        return self._part_stop - self.position

    def ready(self) -> Channel | None:
        """A connection that delivers the bytes from `position`; None at `stop`. Raises as `receive_into`."""
        while self.position < self.stop:
            if self._closed:
                raise FileClosed("the reader is closed")
            if self._channel is not None:
                return self._channel
            self._open_next()
        return None

    def advance(self, count: int) -> None:
        """Note that `count` bytes were taken from the connection that `ready` gave."""
        self.position += count
        self._context.metrics.add(bytes_read=count)
        if self._excluded:
            self._excluded.clear()
            self._looked_up_again = False
        if self.position >= self._part_stop:
            self._end_part()

    def failed(self, reason: str) -> None:
        """Note that the connection broke: the next `ready` takes another replica."""
        replica = self._replica
        if replica is None:
            return
        log.warning("%s at %d: dataserver %s %s", self._attributes.file_id, self.position,
                    replica.dataserver_id, reason)
        self._context.note_failure(replica)
        self._context.metrics.add(replica_failures=1)
        self._excluded.add(replica.dataserver_id)
        self._tried.append(f"{replica.dataserver_id} ({replica.host}:{replica.port}): {reason}")
        self._drop()

    def close(self) -> None:
        """Stop receiving; a thread that is blocked here wakes up with FileClosed. Safe to call again."""
        self._closed = True
        self._drop()

    # ------------------------------------------------------------------ private

    def _open_next(self) -> None:
        bound = None if self._parts else self._plan()
        part = self._parts.popleft()
        self._replica = next(replica for replica in self._replicas if replica.dataserver_id == part.replica_id)
        self._part_stop = part.offset_bytes + part.size_bytes
        try:
            if part.chosen_by == "controller":
                if bound is None:
                    own_address = self._context.address_toward(self._replica)
                    bound = _bind(own_address, part.replica_host, part.client_port)
                self._channel = connect(part.replica_host, part.replica_port, bound=bound)
            else:
                self._channel = self._context.connections.take(part.replica_host, part.replica_port)
            self._ask(self._channel)
        except (ConnectionLost, MalformedFrame, OSError) as error:
            self.failed(str(error))
            return
        self.current = part
        if self.position >= self._part_stop:
            self._end_part()

    def _ask(self, channel: Channel) -> None:
        channel.send(DataRequest(read=ReadOperation(
            file_id=self._attributes.file_id, offset=self.position, length=self._part_stop - self.position)))
        reply = channel.expect(DataReply)
        self._reached_any = True
        self.file_size = max(self.file_size, reply.file_size)
        wanted = self._part_stop - self.position
        if reply.status == NOT_FOUND:
            self._missing += 1
        if reply.status == NOT_FOUND and self._short and self._attributes.size == 0:
            self.stop = self._part_stop = self.position  # nothing was ever appended
        elif reply.status != OK:
            raise ConnectionLost(reply.message or f"answered with status {reply.status}")
        elif reply.length < wanted:
            if not self._short or reply.file_size < self._attributes.size:
                raise ConnectionLost(f"has only {reply.file_size} bytes of the file")
            self.stop = self._part_stop = self.position + reply.length

    def _plan(self) -> socket.socket | None:
        """Fill `_parts` for the rest of the range; returns the socket that the controller knows."""
        candidates = self._candidates()
        size = self.stop - self.position
        nearest = candidates[0]
        steering = self._context.steering
        if self._steer and steering is not None and size >= self._context.steer_min_bytes:
            try:
                own_address = self._context.address_toward(nearest)
                bound = _bind(own_address, nearest.host, 0)
            except OSError as error:
                log.warning("no local port for a steered read: %s", error)
            else:
                placement = steering.place(own_address, bound.getsockname()[1], candidates, self.position, size,
                                           self._attributes.file_id)
                if placement is not None:
                    self._parts.extend(placement.parts)
                    self._read_id = placement.read_id
                    self._context.metrics.add(steered_reads=1)
                    return bound
                bound.close()
        self._parts.append(SteeredRead(
            replica_id=nearest.dataserver_id, replica_host=nearest.host, replica_port=nearest.port, client_port=0,
            chosen_by="nearest", offset_bytes=self.position, size_bytes=size))
        self._context.metrics.add(**{"nearest_reads" if self._steer else "small_reads": 1})
        return None

    def _candidates(self) -> list[Replica]:
        left = [replica for replica in self._replicas if replica.dataserver_id not in self._excluded]
        if not left and not self._looked_up_again:
            self._look_up_again()
            left = self._replicas
        if left:
            return self._context.near_first(left, self._attributes.file_id)
        if not self._tried:
            raise NoReplicaAvailable(f"the file {self._attributes.file_id} has no replica")
        tried = "; ".join(dict.fromkeys(self._tried))
        if self._missing >= len(self._tried):
            raise StaleFile(f"the content {self._attributes.file_id} is gone, tried {tried}")
        kind = ReadFailed if self._reached_any else NoReplicaAvailable
        raise kind(f"no replica delivers {self._attributes.file_id} at {self.position}, tried {tried}")

    def _look_up_again(self) -> None:
        self._looked_up_again = True
        self._excluded.clear()
        try:
            attributes = self._context.metadata.lookup_inode(self._attributes.inode)
        except SpeedwellError as error:
            log.debug("replicas of %s could not be looked up again: %s", self._attributes.file_id, error)
            return
        if attributes.file_id == self._attributes.file_id:
            self._replicas = list(attributes.replicas)

    def _end_part(self) -> None:
        channel, self._channel = self._channel, None
        part = self.current
        if channel is not None and part is not None and part.chosen_by == "nearest":
            self._context.connections.give_back(part.replica_host, part.replica_port, channel)
        elif channel is not None:
            channel.close()
        if self.position >= self.stop:
            self._end_steering()

    def _drop(self) -> None:
        self._parts.clear()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._end_steering()

    def _end_steering(self) -> None:
        read_id, self._read_id = self._read_id, None
        if read_id is not None and self._context.steering is not None:
            self._context.steering.finished(read_id)


def _bind(own_address: str | None, toward: str, port: int) -> socket.socket:
    """A socket with a local port of its own, known before it connects."""
    connection = socket.socket(socket.AF_INET6 if ":" in toward else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((own_address or "", port))
        # After the bind: a port of one's own, which the next part of the same read may take over.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        connection.close()
        raise
    return connection
