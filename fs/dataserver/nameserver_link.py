"""What a dataserver asks of the nameserver."""

import time
from collections.abc import Sequence
from typing import Any

import grpc

from fs import rpc
from fs.errors import NameserverUnavailable, NotLeader
from fs.proto.speedwell_pb2 import (
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
from fs.proto.speedwell_pb2_grpc import NameserverStub

CALL_TIMEOUT_SECONDS = 2.0
RETRY_PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 3.0
"""How long a change is asked for while no nameserver answers."""


class NameserverLink:
    """Connections to the nameservers, of which one leads, for all threads of a dataserver."""

    def __init__(self, address: str, dataserver_id: str) -> None:
        """`address` is HOST:PORT[,HOST:PORT...]."""
        self.address = address
        self._dataserver_id = dataserver_id
        self._addresses = address.split(",")
        self._failed = [False] * len(self._addresses)   # when last asked
        self._channels = [grpc.insecure_channel(one, options=rpc.RECONNECTION) for one in self._addresses]
        self._stubs: list[Any] = [NameserverStub(channel)  # type: ignore[no-untyped-call]
                                  for channel in self._channels]
        self._leader = 0

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Raises grpc.RpcError, ValueError after `close`."""
        reply: HeartbeatReply = self._ask("Heartbeat", request)
        return reply

    def _ask(self, method: str, request: Any) -> Any:
        """The answer of the first nameserver that leads, the last one known asked first; else the last error."""
        for left in reversed(range(len(self._stubs))):
            asked = self._leader
            wait = self._failed[asked] and rpc.listens(self._addresses[asked], CALL_TIMEOUT_SECONDS)
            try:
                reply = getattr(self._stubs[asked], method)(request, timeout=CALL_TIMEOUT_SECONDS,
                                                            wait_for_ready=wait)
                self._failed[asked] = False
                return reply
            except grpc.RpcError as error:
                self._failed[asked] = rpc.is_transport_failure(error)
                if not self._failed[asked] and not isinstance(rpc.error_from(error, ""), NotLeader):
                    raise
                if self._leader == asked:
                    self._leader = (asked + 1) % len(self._stubs)
                if not left:
                    raise
        raise AssertionError("there is always one nameserver")

    def change_replicas(self, inode: int, file_id: str, epoch: int, *, remove: Sequence[str] = (),
                        add: Sequence[str] = (), new_epoch: bool = False) -> ChangeReplicasReply:
        """The set after the change; with `new_epoch` its epoch grows though the set stays.

        Raises StaleEpoch, StaleFile, NoSuchFile, NoReplicaAvailable, NameserverUnavailable.
        """
        reply: ChangeReplicasReply = self._insist("ChangeReplicas", ChangeReplicasRequest(
            inode=inode, file_id=file_id, epoch=epoch, dataserver_id=self._dataserver_id, remove=remove, add=add,
            new_epoch=new_epoch))
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
            except grpc.RpcError as error:
                known = rpc.error_from(error, self.address)
                if not isinstance(known, NotLeader | NameserverUnavailable):
                    raise known from None
                if time.monotonic() > deadline:
                    raise NameserverUnavailable(f"the nameserver at {self.address} does not answer") from None
            except ValueError:
                raise NameserverUnavailable("the dataserver is stopping") from None
            time.sleep(RETRY_PAUSE_SECONDS)

    def upload_mirror(self, request: UploadMirrorRequest) -> UploadMirrorReply:
        """Send a part of the namespace. Raises NameserverUnavailable, StorageFailed."""
        try:
            reply: UploadMirrorReply = self._ask("UploadMirror", request)
            return reply
        except grpc.RpcError as error:
            raise rpc.error_from(error, self.address) from None
        except ValueError:
            raise NameserverUnavailable("the dataserver is stopping") from None

    def look_up(self, inode: int) -> Attributes:
        """The attributes of a file. Raises NoSuchFile, NameserverUnavailable."""
        try:
            attributes: Attributes = self._ask("Lookup", LookupRequest(inode=inode)).attributes
            return attributes
        except grpc.RpcError as error:
            raise rpc.error_from(error, self.address) from None
        except ValueError:
            raise NameserverUnavailable("the dataserver is stopping") from None

    def close(self) -> None:
        """Calls under way are cancelled."""
        for channel in self._channels:
            channel.close()
