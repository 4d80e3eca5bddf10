"""The keys with which tokens are signed: made here, kept in the namespace's store, known to all dataservers.

Two are alive. A new one is told to the dataservers before it signs, and the one before it stays good until all that
it has signed has ended. Times are milliseconds by the nameserver's clock, passed in.
"""

import secrets

from google.protobuf.message import DecodeError

from fs import tokens
from fs.errors import StorageFailed
from fs.nameserver.records import TOKEN_KEYS_KEY
from fs.nameserver.registry import Registry
from fs.proto.speedwell_pb2 import Admission, ProofKeyReply, Replica, TokenKey
from fs.store import Batch, Store

TOLD_MS = 10_000
"""So long before it signs a key is known to dataservers, which send heartbeats each second."""


class TokenKeys:
    """One thread at a time, but for what is signed. Of an `insecure` nameserver there are none."""

    def __init__(self, store: Store, valid_seconds: float, *, insecure: bool) -> None:
        """Raises StorageFailed."""
        self._store = store
        self._insecure = insecure
        self._valid_ms = int(valid_seconds * 1000)
        self._told_ms = min(TOLD_MS, self._valid_ms)
        self._rotation_ms = 2 * (self._valid_ms + self._told_ms)
        self._version = secrets.randbits(63)
        self._listed: tuple[int, list[Replica]] = -1, []
        try:
            self._keys = list(Admission.FromString(store.get(TOKEN_KEYS_KEY) or b"").keys)   # the oldest first
        except DecodeError as error:
            raise StorageFailed("the record of the keys for tokens is damaged") from error
        self._signing = self._keys[0] if self._keys else None

    def sign(self, file_id: str, inode: int, rights: int, now_ms: int, client: str = "") -> bytes:
        """A token; empty before the first dataserver was heard, when there is nothing to be read."""
        key = self._signing
        if key is None or self._insecure:
            return b""
        return tokens.sign(key.number, key.secret, file_id, rights, now_ms, self._valid_ms, inode, client)

    def proof_key(self, client: str) -> ProofKeyReply:
        """What a client needs to show the tokens that are for it. Half as long as a token counts it stays good: that
        is how long the key before it is kept."""
        key = self._signing
        if key is None or self._insecure or not client:
            return ProofKeyReply()
        return ProofKeyReply(client=client, key=key.number, valid_ms=self._valid_ms // 2,
                             secret=tokens.proof_secret(key.secret, client))

    def renew(self, now_ms: int) -> None:
        """Make a key if the newest is old, and sign with the newest that all know. Raises StorageFailed."""
        if self._insecure:
            return
        newest = self._keys[-1] if self._keys else None
        if newest is None or not 0 <= now_ms - newest.made_ms < self._rotation_ms:
            number = 1 if newest is None else newest.number % 0xFFFFFFFF + 1
            self._keys = [*self._keys[-1:], TokenKey(number=number, secret=secrets.token_bytes(tokens.SECRET_BYTES),
                                                     made_ms=now_ms)]
            batch = Batch()
            batch.put(TOKEN_KEYS_KEY, Admission(keys=self._keys).SerializeToString())
            self._store.write(batch)
        known = [key for key in self._keys if now_ms - key.made_ms >= self._told_ms]
        self._signing = (known or self._keys)[-1 if known else 0]

    def admission(self, registry: Registry, known_version: int, now_ms: int) -> Admission:
        """What a dataserver is told that has that version of the list of servers."""
        if self._signing is None:
            return Admission()
        if self._listed[0] != registry.changes:
            self._listed = registry.changes, [
                Replica(dataserver_id=server.dataserver_id, host=server.host, port=server.port,
                        other_hosts=registry.other_hosts(server.number)) for server in registry.known()]
        version = (self._version + registry.changes) % 2**64
        others = [key for key in self._keys if key.number != self._signing.number]
        return Admission(keys=[self._signing, *others], now_ms=now_ms, servers_version=version,
                         servers=() if version == known_version else self._listed[1])
