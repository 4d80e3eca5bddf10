"""The few requests of an etcd cluster that the replicated store needs, over etcd's own gRPC interface."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import InvalidArgument, StorageFailed
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import ETCD, host_of
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.proto import etcd_pb2_grpc as pb_grpc

ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),     # a member that restarts is found again at once
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1000),        # how long an attempt may take, on a busy machine too
    ("grpc.max_receive_message_length", -1),
    ("grpc.lb_policy_name", "round_robin"),
    # also while nothing comes: a follower must notice that the machine is gone from which it hears of a dead leader
    ("grpc.keepalive_time_ms", 2000), ("grpc.keepalive_timeout_ms", 1000), ("grpc.http2.max_pings_without_data", 0)]


class EtcdClient:
    """One etcd cluster. Thread-safe. A request goes to any member that answers and is sent again until
    `timeout_seconds` are over, so it may be carried out twice: only requests are offered that bear it.

    Every method raises StorageFailed if no member answers, or if etcd refuses.
    """

    def __init__(self, endpoints: Sequence[str], timeout_seconds: float = 5.0,
                 identity: Identity | None = None, attempt_seconds: float = ATTEMPT_SECONDS) -> None:
        """`endpoints` are HOST:PORT of etcd's client interface, over TLS with an `identity`. A member may take
        `attempt_seconds` to answer. Raises InvalidArgument if one is malformed."""
        self.endpoints = tuple(endpoints)
        self._timeout_seconds = timeout_seconds
        self._attempt_seconds = attempt_seconds
        self._identity = identity
        self._closed = threading.Event()
        self._connected = _Connected(endpoints, identity)

    @property
    def _now(self) -> "_Connected":
        """What requests under way use goes on after a certificate was renewed; new ones are made with that."""
        if self._identity is not None and self._identity.generation != self._connected.generation:
            self._connected = _Connected(self.endpoints, self._identity)
        return self._connected

    def range(self, key: bytes, range_end: bytes, *, limit: int = 0, revision: int = 0) -> pb.RangeResponse:
        """Pairs of the range in order, as of `revision` (0: now)."""
        request = pb.RangeRequest(key=key, range_end=range_end, limit=limit, revision=revision)
        answer: pb.RangeResponse = self._call(self._now.kv.Range, request)
        return answer

    def transaction(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """The comparisons must make a second execution fail, or harmless."""
        answer: pb.TxnResponse = self._call(self._now.kv.Txn, request)
        return answer

    def compact(self, revision: int) -> None:
        """Let etcd forget what was before `revision`."""
        self._call(self._now.kv.Compact, pb.CompactionRequest(revision=revision))

    def grant_lease(self, seconds: int) -> tuple[int, float]:
        """A new lease, and for how many seconds etcd grants it (it has a minimum)."""
        answer = self._call(self._now.lease.LeaseGrant, pb.LeaseGrantRequest(TTL=seconds))
        return answer.ID, float(answer.TTL)

    def renew_lease(self, lease: int) -> float:
        """For how many seconds from the request on the lease lives; 0 if it has ended."""
        answers = self._now.lease.LeaseKeepAlive(iter([pb.LeaseKeepAliveRequest(ID=lease)]),
                                                 timeout=self._attempt_seconds)
        try:
            return float(next(answers).TTL)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        finally:
            answers.cancel()

    def revoke_lease(self, lease: int) -> None:
        """End a lease and what hangs on it; one that has ended is no error."""
        try:
            self._now.lease.LeaseRevoke(pb.LeaseRevokeRequest(ID=lease), timeout=self._attempt_seconds)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise self._failed(error) from error

    def replace_member(self, peer_url: str) -> None:
        """Let the member whose peers reach it at `peer_url` begin anew with an empty disk. Until it has, another call
        changes nothing."""
        members = self._call(self._now.cluster.MemberList, pb.MemberListRequest()).members
        lost = next((member for member in members if peer_url in member.peerURLs), None)
        if lost is not None and lost.name:
            self._call(self._now.cluster.MemberRemove, pb.MemberRemoveRequest(ID=lost.ID))
        if lost is None or lost.name:
            self._call(self._now.cluster.MemberAdd, pb.MemberAddRequest(peerURLs=[peer_url]))

    def watch(self, key: bytes, range_end: bytes, start_revision: int) -> "Watching":
        """The changes of the range from a revision on, as they come."""
        return Watching(self._now.watch.Watch, pb.WatchRequest(create_request=pb.WatchCreateRequest(
            key=key, range_end=range_end, start_revision=start_revision)), self._failed)

    def close(self) -> None:
        """Requests under way fail."""
        self._closed.set()
        self._connected.channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                return method(request, timeout=self._attempt_seconds)
            except grpc.RpcError as error:
                if error.code() not in _UNREACHABLE or time.monotonic() > deadline or self._closed.is_set():
                    raise self._failed(error) from error
                self._closed.wait(_PAUSE_SECONDS)
            except ValueError:
                raise StorageFailed("the store is closed") from None

    def _failed(self, error: Any) -> StorageFailed:
        verb = "does not answer" if error.code() in _UNREACHABLE else "refused a request"
        return StorageFailed(f"etcd at {','.join(self.endpoints)} {verb}: {error.details()}")


class _Connected:
    def __init__(self, endpoints: Sequence[str], identity: Identity | None) -> None:
        if identity is None:
            self.generation = 0
            self.channel = grpc.insecure_channel(_target(endpoints), options=_CHANNEL_OPTIONS)
        else:
            self.generation = identity.generation
            self.channel = grpc.secure_channel(_target(endpoints), identity.grpc_credentials(), options=[
                *_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", host_of(ETCD))])
        self.kv = pb_grpc.KVStub(self.channel)           # type: ignore[no-untyped-call]
        self.lease = pb_grpc.LeaseStub(self.channel)     # type: ignore[no-untyped-call]
        self.watch = pb_grpc.WatchStub(self.channel)     # type: ignore[no-untyped-call]
        self.cluster = pb_grpc.ClusterStub(self.channel)     # type: ignore[no-untyped-call]


class Watching:
    """One watch. Iterating gives each answer; it ends after `cancel`. Raises StorageFailed when it breaks."""

    def __init__(self, method: Any, request: pb.WatchRequest, failed: Callable[[Any], StorageFailed]) -> None:
        self._requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        self._requests.put(request)
        self._failed = failed
        self._cancelled = False
        self._answers = method(iter(self._requests.get, None))

    def __iter__(self) -> Iterator[pb.WatchResponse]:
        try:
            yield from self._answers
        except grpc.RpcError as error:
            if not self._cancelled:
                raise self._failed(error) from error
        finally:
            self._requests.put(None)

    def cancel(self) -> None:
        """Safe to call from another thread, and again."""
        self._cancelled = True
        self._answers.cancel()
        self._requests.put(None)


def _target(endpoints: Sequence[str]) -> str:
    """gRPC's name for several addresses of one service, all of one address family."""
    if not endpoints:
        raise InvalidArgument("etcd: name at least one HOST:PORT")
    addresses = [_numeric(endpoint) for endpoint in endpoints]
    families = {address.count(":") > 1 for address in addresses}
    if len(families) > 1:
        raise InvalidArgument("etcd: give all addresses of one family, IPv4 or IPv6")
    return ("ipv6:" if families.pop() else "ipv4:") + ",".join(addresses)


def _numeric(endpoint: str) -> str:
    host, port = parse_address(endpoint, "etcd")
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InvalidArgument(f"etcd: {endpoint}: {error.strerror}") from None
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
