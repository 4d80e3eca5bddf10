"""What a dataserver asks of the nameserver."""

import time
from typing import Any

from speedwell.fs.errors import FileClosed, NameserverUnavailable, NotAuthenticated, NotLeader, SpeedwellError
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.proto.speedwell_pb2 import (
    Attributes,
    ChangeReplicasReply,
    ChangeReplicasRequest,
    HeartbeatReply,
    HeartbeatRequest,
    LookupRequest,
    PublishReply,
    PublishRequest,
    UploadMirrorReply,
    UploadMirrorRequest,
)
from speedwell.fs.wire.calls import CallFailed, Calls

CALL_TIMEOUT_SECONDS = 2.0
RETRY_PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 3.0
"""How long a change is asked for while no nameserver answers."""


class NameserverLink:
    """Connections to the nameservers, of which one leads, for all threads of a dataserver."""

    def __init__(self, address: str, dataserver_id: str, identity: Identity | None = None) -> None:
        """`address` is HOST:PORT[,HOST:PORT...]. Raises InvalidArgument."""
        self.address = address
        self.identity = identity
        self._dataserver_id = dataserver_id
        self._calls = [Calls(one, CALL_TIMEOUT_SECONDS, identity) for one in address.split(",")]
        self._leader = 0
        self._silent: set[int] = set()

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Raises what the nameserver reports, NameserverUnavailable, FileClosed after `close`."""
        reply: HeartbeatReply = self._ask("Heartbeat", request)
        return reply

    def _ask(self, method: str, request: Any) -> Any:
        """The answer of the first nameserver that leads, the last one known asked first and those that did not answer
        last; else the last error, a refused certificate only if there is no other."""
        failure: SpeedwellError | None = None
        first, count = self._leader, len(self._calls)
        for asked in sorted(range(count), key=lambda each: (each in self._silent, (each - first) % count)):
            try:
                reply = self._calls[asked].call(method, request, CALL_TIMEOUT_SECONDS)
                self._leader = asked
                self._silent.discard(asked)
                return reply
            except NotAuthenticated as error:
                failure = failure or error
            except CallFailed:
                failure = self._unanswered()
                self._silent.add(asked)
            except NotLeader as error:
                failure = error
                self._silent.discard(asked)
        assert failure is not None
        raise failure

    def _unanswered(self) -> NameserverUnavailable:
        return NameserverUnavailable(f"the nameserver at {self.address} does not answer")

    def change_replicas(self, inode: int, file_id: str, epoch: int,
                        change: ChangeReplicasRequest) -> ChangeReplicasReply:
        """The set after `change`, in which this names the file, the epoch and who asks.

        Raises StaleEpoch, StaleFile, NoSuchFile, NoReplicaAvailable, NoSpace, TooFewReplicas, NameserverUnavailable.
        """
        change.inode, change.file_id, change.epoch = inode, file_id, epoch
        change.dataserver_id = self._dataserver_id
        reply: ChangeReplicasReply = self._insist("ChangeReplicas", change)
        return reply

    def publish(self, inode: int, base: str, base_size: int, file_id: str, size: int, epoch: int, *,
                session: int, generation: int, hole_bytes: int) -> Attributes:
        """The file's attributes with the new version `file_id`, `size` bytes long of which `hole_bytes` take no
        space, made from `base` when that had `base_size` bytes, for a client that holds locks by that session, 0 for
        none.

        Raises Superseded, StaleEpoch, NoSuchFile, QuotaExceeded, LocksLost; NameserverUnavailable: it may be
        published, or be so later.
        """
        reply: PublishReply = self._insist("Publish", PublishRequest(
            inode=inode, base=base, base_size=base_size, file_id=file_id, size=size, epoch=epoch,
            dataserver_id=self._dataserver_id, session=session, generation=generation, hole_bytes=hole_bytes))
        return reply.attributes

    def _insist(self, method: str, request: Any) -> Any:
        """The answer to a request that is sent until it is answered. Raises what the nameserver reports, and
        NameserverUnavailable."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._ask(method, request)
            except (NotLeader, NameserverUnavailable):
                if time.monotonic() > deadline:
                    raise self._unanswered() from None
            except FileClosed:
                raise NameserverUnavailable("the dataserver is stopping") from None
            time.sleep(RETRY_PAUSE_SECONDS)

    def upload_mirror(self, request: UploadMirrorRequest) -> UploadMirrorReply:
        """Send a part of the namespace. Raises NameserverUnavailable, StorageFailed."""
        reply: UploadMirrorReply = self._ask_once("UploadMirror", request)
        return reply

    def look_up(self, inode: int) -> Attributes:
        """The attributes of a file. Raises NoSuchFile, NameserverUnavailable."""
        attributes: Attributes = self._ask_once("Lookup", LookupRequest(inode=inode)).attributes
        return attributes

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        for calls in self._calls:
            calls.close()

    def _ask_once(self, method: str, request: Any) -> Any:
        try:
            return self._ask(method, request)
        except FileClosed:
            raise NameserverUnavailable("the dataserver is stopping") from None
