"""The keys with which tokens are signed: made here, kept in the namespace's store, known to all dataservers.

Two are alive. A new one is told to the dataservers before it signs, and the one before it stays good until all that
it has signed has ended. Times are milliseconds by the nameserver's clock, passed in.
"""

import secrets
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from speedwell.fs import tokens
from speedwell.fs.errors import StorageFailed
from speedwell.fs.identity.bundle import MOST_REVOKED
from speedwell.fs.identity.roles import DATASERVER
from speedwell.fs.nameserver.namespace.namespace_records import TOKEN_KEYS_KEY
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.proto.speedwell_pb2 import Admission, HeartbeatRequest, ProofKeyReply, Replica, Revocation, TokenKey
from speedwell.fs.store import Batch, Store

MOST_ENDED = 1024
"""Contents to which no earlier token may write; one more, and it is so for all contents."""

TOLD_MS = 10_000
"""So long before it signs a key is known to dataservers, which send heartbeats each second."""


class TokenKeys:
    """One thread at a time, but for what is signed. Of an `insecure` nameserver there are none."""

    def __init__(self, store: Store, valid_seconds: float, *, insecure: bool,
                 revoked: Callable[[], Mapping[str, str]] = dict) -> None:
        """`revoked` are certificates, as `Identity.revoked`. Raises StorageFailed."""
        self._store = store
        self._insecure = insecure
        self._valid_ms = int(valid_seconds * 1000)
        self._told_ms = min(TOLD_MS, self._valid_ms)
        self._rotation_ms = 2 * (self._valid_ms + self._told_ms)
        self._version = secrets.randbits(63)
        self._listed: tuple[int, list[Replica]] = -1, []
        self._revoked = revoked
        self._noticed = 0
        self._looked_at: Mapping[str, str] | None = None
        try:
            kept = Admission.FromString(store.get(TOKEN_KEYS_KEY) or b"")
        except DecodeError as error:
            raise StorageFailed("the record of the keys for tokens is damaged") from error
        self._keys = list(kept.keys)    # the oldest first
        self._revocations = {each.serial: each for each in kept.revocations if not each.file_id}
        self._ended = {each.file_id: each.noticed_ms for each in kept.revocations if each.file_id}
        self._signing = self._keys[0] if self._keys else None

    def sign(self, file_id: str, inode: int, rights: int, now_ms: int, client: str = "") -> bytes:
        """A token; empty before the first dataserver was heard, when there is nothing to be read."""
        key = self._signing
        if key is None or self._insecure:
            return b""
        ended_ms = max(self._ended.get(file_id, -1), self._ended.get(tokens.ALL_CONTENTS, -1)) if self._ended else -1
        return tokens.sign(key.number, key.secret, file_id, rights, max(now_ms, ended_ms + 1), self._valid_ms, inode,
                           client)

    def end_writes(self, file_id: str, now_ms: int) -> None:
        """With no token that was given until now a client may write to that content any more; dataservers learn it
        with their next heartbeat. Raises StorageFailed."""
        if self._insecure or self._signing is None:
            return
        past_ms = now_ms - self._valid_ms - tokens.TOLERANCE_MS
        self._ended = {each: ended_ms for each, ended_ms in self._ended.items() if ended_ms > past_ms}
        if len(self._ended) >= MOST_ENDED:
            self._ended, file_id = {}, tokens.ALL_CONTENTS
        self._ended[file_id] = now_ms
        self._noticed += 1
        self._keep()

    def is_revoked(self, serial: str) -> bool:
        return serial in self._revocations

    def proof_key(self, client: str) -> ProofKeyReply:
        """What a client needs to show the tokens that are for it. Half as long as a token counts it stays good: that
        is how long the key before it is kept."""
        key = self._signing
        if key is None or self._insecure or not client:
            return ProofKeyReply()
        return ProofKeyReply(client=client, key=key.number, valid_ms=self._valid_ms // 2,
                             secret=tokens.proof_secret(key.secret, client))

    def renew(self, now_ms: int) -> None:
        """Make a key if the newest is old, or one who knows it was revoked, and sign with the newest that all know.
        Raises StorageFailed."""
        if self._insecure:
            return
        newest = self._keys[-1] if self._keys else None
        revoked = self._newly_revoked(now_ms)
        leaked = any(each.client.startswith(f"{DATASERVER} ") for each in revoked)
        is_due = newest is None or leaked or not (
            -tokens.TOLERANCE_MS <= now_ms - newest.made_ms < self._rotation_ms)
        if is_due:
            number = 1 if newest is None else newest.number % 0xFFFFFFFF + 1
            self._keys = [*([] if leaked else self._keys[-1:]), TokenKey(
                number=number, secret=secrets.token_bytes(tokens.SECRET_BYTES), made_ms=now_ms)]
        if is_due or revoked:
            self._keep()
        known = [key for key in self._keys if now_ms - key.made_ms >= self._told_ms]
        self._signing = (known or self._keys)[-1 if known else 0]

    def _keep(self) -> None:
        batch = Batch()
        batch.put(TOKEN_KEYS_KEY, Admission(keys=self._keys, revocations=self._all_revocations()).SerializeToString())
        self._store.write(batch)

    def _all_revocations(self) -> list[Revocation]:
        return [*self._revocations.values(), *(Revocation(file_id=file_id, noticed_ms=ended_ms)
                                               for file_id, ended_ms in self._ended.items())]

    def _newly_revoked(self, now_ms: int) -> list[Revocation]:
        revoked = self._revoked()
        if revoked is self._looked_at:
            return []
        self._looked_at = revoked
        fresh = [Revocation(serial=serial, client=client, noticed_ms=now_ms)
                 for serial, client in [*revoked.items()][-MOST_REVOKED:] if serial not in self._revocations]
        self._noticed += len(fresh)
        self._revocations.update((each.serial, each) for each in fresh)
        while len(self._revocations) > MOST_REVOKED:
            del self._revocations[next(iter(self._revocations))]
        return fresh

    def admission(self, registry: Registry, request: HeartbeatRequest, now_ms: int) -> Admission:
        """What a dataserver is told; not again what it has."""
        if self._signing is None:
            return Admission()
        if self._listed[0] != registry.changes:
            self._listed = registry.changes, [
                Replica(dataserver_id=server.dataserver_id, host=server.host, port=server.port,
                        other_hosts=registry.other_hosts(server.number)) for server in registry.known()]
        servers = (self._version + registry.changes) % 2**64
        revocations = (self._version + self._noticed) % 2**64
        others = [key for key in self._keys if key.number != self._signing.number]
        return Admission(
            keys=[self._signing, *others], now_ms=now_ms, servers_version=servers, revocations_version=revocations,
            servers=() if servers == request.servers_version else self._listed[1],
            revocations=() if revocations == request.revocations_version else self._all_revocations())
