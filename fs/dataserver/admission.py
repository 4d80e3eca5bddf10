"""Whom a dataserver serves: who shows a token of the nameserver, or is another dataserver.

Dataservers sign the tokens that they show each other themselves, with the keys that they share, and prove who they
are as clients do: who reads the network can use none of these. Keys and the list of
registered servers come with the answers to heartbeats; `ROOT/admission` has them for the next start.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from speedwell.fs import durable, tokens
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.replication.lease import boot_seconds
from speedwell.fs.errors import NotReady, StorageFailed, TokenRefused
from speedwell.fs.identity.roles import DATASERVER
from speedwell.fs.proto.speedwell_pb2 import (
    Admission,
    DataRequest,
    ProofKeyReply,
    ProofOperation,
    Replica,
)
from speedwell.fs.tokens import NOT_OURS, OPERATE, READ, SERVE, TOLERANCE_MS, WRITE, Claims, UnknownKey
from speedwell.fs.wire.channel import Channel
from speedwell.fs.wire.connections import ConnectionPool
from speedwell.fs.wire.identification import Identified

log = logging.getLogger(__name__)

MAX_CHECKED = 4096
"""Genuine tokens that are known again without a computation."""

NOT_HEARD = "this dataserver has not heard yet from the nameserver whom it may serve"
NOT_PROVEN = ("proof: it is not that of a client of this installation for this connection: ask the nameserver for a "
              "newer key")
SERVER_VALID_MS = 3_600_000
NEWS_SECONDS = 3.0
"""For so long a request waits for a heartbeat that may bring the key or the server that it needs."""

Address = tuple[str, str, int]
"""Id, host and port of a dataserver."""


class Door:
    """Thread-safe. An `insecure` one is open to everybody."""

    def __init__(self, store: FileStore, *, insecure: bool = False,
                 clock: Callable[[], float] = boot_seconds, news_seconds: float = NEWS_SECONDS,
                 learn: Callable[[Mapping[str, str]], None] | None = None) -> None:
        """`clock` is one that nobody sets, `learn` is told of revoked certificates. Raises StorageFailed."""
        self._store = store
        self.insecure = insecure
        self.refused = 0            # requests, since the start
        self._own = f"{DATASERVER} {store.dataserver_id}"
        self._identified = Identified(bytes, self.proof_key)
        self._path = store.directory / "admission"
        self._clock = clock
        self._news_seconds = news_seconds
        self._heard = threading.Condition()
        self._times_heard = 0
        self._admission = Admission()
        self._secrets: dict[int, bytes] = {}
        self._checked: dict[tuple[bytes, str, str], Claims] = {}    # genuine ones
        self._servers: frozenset[Address] = frozenset()
        self._learn = learn
        self._ended_ms: dict[str, int] = {}     # by client: tokens that were signed until then count for nothing
        self._writes_ended_ms: dict[str, int] = {}  # by content: the same for tokens to write to it
        self._ahead_ms = 0.0        # of `clock`, the nameserver's clock
        if not insecure:
            self._take(_read(self._path))

    # ------------------------------------------------------------------ what the nameserver says

    @property
    def servers_version(self) -> int:
        return self._admission.servers_version

    @property
    def revocations_version(self) -> int:
        return self._admission.revocations_version

    def hear(self, admission: Admission) -> None:
        """What a heartbeat was answered. Raises StorageFailed if it cannot be kept."""
        if not admission.keys or self.insecure:
            return
        known = self._admission
        if admission.servers_version == known.servers_version:
            admission.servers.extend(known.servers)
        if admission.revocations_version == known.revocations_version:
            admission.revocations.extend(known.revocations)
        is_new = list(admission.keys) != list(known.keys) or admission.servers_version != known.servers_version or (
            admission.revocations_version != known.revocations_version)
        admission.kept_ms = int(time.time() * 1000)
        self._take(admission)
        with self._heard:
            self._times_heard += 1
            self._heard.notify_all()
        if is_new:
            _write(self._path, admission)

    def _take(self, admission: Admission) -> None:
        self._ahead_ms = admission.now_ms - self._clock() * 1000
        self._servers = frozenset((server.dataserver_id, host, server.port) for server in admission.servers
                                  for host in (server.host, *server.other_hosts))
        secrets = {key.number: key.secret for key in admission.keys}
        if secrets != self._secrets:
            self._secrets, self._checked = secrets, {}
        if admission.revocations_version != self._admission.revocations_version:
            self._ended_ms = {}
            revoked = [each for each in admission.revocations if not each.file_id]
            for each in revoked:
                self._ended_ms[each.client] = max(each.noticed_ms, self._ended_ms.get(each.client, 0))
            self._writes_ended_ms = {each.file_id: each.noticed_ms for each in admission.revocations if each.file_id}
            if self._learn is not None:
                self._learn({each.serial: each.client for each in revoked})
        self._admission = admission

    # ------------------------------------------------------------------ requests

    def sign(self, file_id: str) -> bytes:
        """For a request of this dataserver to another one; empty without keys."""
        if self.insecure or not self._admission.keys:
            return b""
        key = self._admission.keys[0]
        return tokens.sign(key.number, key.secret, file_id, READ | WRITE | SERVE, self._now_ms(), SERVER_VALID_MS,
                           client=self._own)

    def proof_key(self) -> ProofKeyReply | None:
        """With which this dataserver proves who it is to others; None without keys."""
        if self.insecure or not self._admission.keys:
            return None
        key = self._admission.keys[0]
        return ProofKeyReply(client=self._own, key=key.number, secret=tokens.proof_secret(key.secret, self._own))

    def connection(self, connections: ConnectionPool, server: Replica) -> Channel:
        """To another dataserver, for the caller alone, on which what is signed here counts. Raises ConnectionLost."""
        return self._identified.require(connections.take(server.host, server.port), server)

    def proven(self, proof: ProofOperation, nonce: bytes, dataserver_id: str) -> str:
        """The client that answered a nonce, which counts once. Raises TokenRefused, NotReady."""
        if self.insecure:
            return proof.client
        if proof.key not in self._secrets:
            self._hears_more(lambda: proof.key in self._secrets)
        if not self._secrets:
            raise NotReady(NOT_HEARD)
        secret = self._secrets.get(proof.key)
        if secret is None or not tokens.is_proof(proof.mac, proof.client, secret, nonce, dataserver_id):
            self.refused += 1
            raise TokenRefused(NOT_PROVEN)
        return proof.client

    def check(self, request: DataRequest, client: str = "") -> None:
        """Whether a client, empty for one that is not known, may ask that. Raises TokenRefused, also for an address
        that is no registered server's, and NotReady."""
        if self.insecure:
            return
        file_id, right = required(request)
        if not right:
            return
        try:
            claims = self._check(request.token, file_id, right, client)
            if not claims.rights & (SERVE | OPERATE):
                self._check_file(request, file_id, claims)
                self._check_writes(request, file_id, claims)
            self._check_servers(request)
        except TokenRefused:
            self.refused += 1
            raise

    def _check_servers(self, request: DataRequest) -> None:
        strangers = [server for server in named(request) if _address(server) not in self._servers]
        if strangers and not self._hears_more(lambda: self._servers.issuperset(map(_address, strangers))):
            stranger = strangers[0]
            raise TokenRefused(f"{request.WhichOneof('operation')}: {stranger.dataserver_id[:200]!r} at "
                               f"{stranger.host[:200]}:{stranger.port} is no dataserver of this installation, or has "
                               "another address now: look the file up again")

    def _check(self, token: bytes, file_id: str, right: int, client: str) -> Claims:
        claims = self._checked.get((token, file_id, client)) or self._verified(token, file_id, client)
        if claims.ends_ms + TOLERANCE_MS < self._now_ms():
            raise TokenRefused("token: it has ended; look the file up again for a new one")
        if claims.signed_ms <= self._ended_ms.get(client, -1):
            raise TokenRefused(f"token: it was given before the certificate of the {client} was revoked; look the "
                               "file up again with a new one")
        if not claims.rights & (READ | OPERATE if right == READ else right):
            raise TokenRefused(f"token: it gives no right to {_RIGHTS[right]}; look the file up again")
        return claims

    def _verified(self, token: bytes, file_id: str, client: str) -> Claims:
        checked = self._checked     # a key that goes takes with it what it has signed
        try:
            claims = tokens.verified(token, file_id, self._secrets, client)
        except UnknownKey:
            number = tokens.read(token).key
            if not self._hears_more(lambda: number in self._secrets):
                if not self._secrets:
                    raise NotReady(NOT_HEARD) from None
                raise
            return tokens.verified(token, file_id, self._secrets, client)
        if len(checked) >= MAX_CHECKED:
            checked.clear()
        checked[token, file_id, client] = claims
        return claims

    def _check_file(self, request: DataRequest, file_id: str, claims: Claims) -> None:
        """A token for one file's content is none for another's that took its id. A content is made only with a token
        from a time since which all deletions are known here: it may have been deleted."""
        try:
            inode = self._store.inode_of(file_id)
        except StorageFailed:
            return      # there is nothing that could be read of it
        begins = request.WhichOneof("operation") in ("append", "write")
        if begins and inode is None:
            signed_at = self._clock() - (self._now_ms() - claims.signed_ms) / 1000
            if signed_at < self._store.remembers_since:
                raise TokenRefused("token: it is too old to begin a content with; look the file up again")
        begun = request.append.inode or request.write.inode
        if inode not in (None, claims.inode) or (begins and begun != claims.inode):
            raise TokenRefused(NOT_OURS)

    def _check_writes(self, request: DataRequest, file_id: str, claims: Claims) -> None:
        if request.WhichOneof("operation") in ("append", "write") and claims.signed_ms <= max(
                self._writes_ended_ms.get(each, -1) for each in (file_id, tokens.ALL_CONTENTS)):
            raise TokenRefused("token: it was given before the file was made a program that lends rights; look the "
                               "file up again")

    def _hears_more(self, is_there: Callable[[], bool]) -> bool:
        """Wait for the next heartbeat's answer if that may bring it."""
        with self._heard:
            before = self._times_heard
            self._heard.wait_for(lambda: is_there() or self._times_heard > before + 1, self._news_seconds)
        return is_there()

    def _now_ms(self) -> int:
        return int(self._clock() * 1000 + self._ahead_ms)


_RIGHTS = {READ: "read", WRITE: "write", SERVE: "act as a dataserver", OPERATE: "act as an operator"}


def required(request: DataRequest) -> tuple[str, int]:
    """The content that a request is about, and the right that it needs there; 0: none, and it may be malformed."""
    operation = request.WhichOneof("operation")
    if operation == "read":
        return request.read.file_id, READ
    if operation == "append":
        return request.append.file_id, SERVE if request.append.HasField("offset") else WRITE
    if operation == "write":
        return request.write.base, SERVE if request.write.ordered else WRITE
    if operation == "length":
        return request.length.file_id, READ
    if operation == "check":
        return request.check.file_id, READ
    if operation == "holes":
        return request.holes.file_id, READ
    if operation == "history":
        return request.history.file_id, SERVE
    if operation == "join":
        return request.join.copy.file_id, SERVE
    if operation == "sync":
        return request.sync.file_id, SERVE if request.sync.relayed else WRITE
    return ("", 0) if operation in (None, "identity", "proof") else ("", OPERATE)


def named(request: DataRequest) -> Iterable[Replica]:
    """The servers that the dataserver would connect to for a request."""
    operation = request.WhichOneof("operation")
    if operation == "append":
        return request.append.relay
    if operation == "write":
        return request.write.relay
    if operation == "length":
        return request.length.others
    if operation == "sync":
        return request.sync.others
    if operation == "join":
        return [request.join.candidate, *request.join.copy.replicas]
    return ()


def _address(server: Replica) -> Address:
    return server.dataserver_id, server.host, server.port


def _read(path: Path) -> Admission:
    """What was kept, with the nameserver's clock as it should show by now."""
    try:
        admission = Admission.FromString(path.read_bytes())
    except FileNotFoundError:
        return Admission()
    except DecodeError:
        log.error("%s is damaged: the nameserver is asked for its keys", path)
        return Admission()
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from None
    admission.now_ms = max(0, admission.now_ms + int(time.time() * 1000) - admission.kept_ms)
    return admission


def _write(path: Path, admission: Admission) -> None:
    try:
        durable.replace(path, admission.SerializeToString())
    except OSError as error:
        raise StorageFailed(f"cannot write to {path}: {error.strerror}") from None
