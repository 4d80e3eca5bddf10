"""The tokens that a client shows to dataservers, and the key with which it proves that they are its own: both are
renewed well before they end."""

import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from speedwell.fs import paths, tokens
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NoSuchAttribute, NotAuthorised, SpeedwellError, TokenRefused
from speedwell.fs.file_status import CAPABILITIES
from speedwell.fs.proto.speedwell_pb2 import Attributes, ProofKeyReply
from speedwell.fs.tokens import OPERATE, READ, WRITE, Claims, gives_no

KEPT = 65536
PAUSE_SECONDS = 5.0
"""Between two attempts to renew a token that is still good, and two questions for a key where there is none."""


@dataclass(slots=True)
class _Kept:
    token: bytes
    claims: Claims
    renew_at: float     # by the monotonic clock: half its time after it was first seen
    refused: bool = False
    passed: frozenset[bytes] = frozenset()
    """Tokens that were signed later by the nameserver's clock, and before: it was set back."""


class Tokens:
    """Those of one client. Thread-safe. No clock is compared with another machine's."""

    def __init__(self, metadata: MetadataClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._metadata = metadata
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False
        self._proof_key: ProofKeyReply | None = None
        self._new_key_at = 0.0

    def proof_key(self) -> ProofKeyReply | None:
        """None where tokens are for whoever shows them, or no nameserver says."""
        if self._clock() < self._new_key_at:
            return self._proof_key
        if self._proof_key is None:
            self._renew_key()
        else:
            self._new_key_at = self._clock() + PAUSE_SECONDS
            self._in_background(self._renew_key)
        return self._proof_key

    def of(self, attributes: Attributes, right: int = READ) -> bytes:
        """The token to show for the content in `attributes`; empty if the nameserver gives none. In the second half
        of its time it is renewed in the background; one that lacks the right, or was refused, at once, if the
        nameserver answers."""
        kept = self._newest(attributes)
        if kept is None:
            return attributes.token
        if kept.refused or not kept.claims.rights & (right | OPERATE):
            kept.refused = False
            self._renew(attributes, right)
            kept = self._newest(attributes) or kept
        elif self._clock() >= kept.renew_at:
            kept.renew_at = self._clock() + PAUSE_SECONDS
            self._in_background(self._renew, attributes, kept.claims.rights)
        return kept.token

    def look_up_to_write(self, known: Attributes) -> Attributes:
        """Of an open file, never from the cache, with a primary that can order appends. From one to which we could
        write when it was `known`, and which lends rights by now, these are taken, as each write does. Raises
        NoSuchFile if it was removed."""
        newest = self._metadata.lookup_inode(known.inode, to_append=True)
        if not known.token or gives_no(WRITE, known.token) or not gives_no(WRITE, newest.token):
            return newest
        path = paths.of_inode(known.inode)
        lent = stat.S_ISUID | (stat.S_ISGID if newest.mode & stat.S_IXGRP else 0)
        with suppress(NotAuthorised, NoSuchAttribute):
            if newest.mode & lent:
                self._metadata.set_attributes(path, mode=newest.mode & ~lent)
            if newest.has_extended_attributes:
                self._metadata.posix.remove_extended_attribute(path, CAPABILITIES)
        return self._metadata.lookup_inode(known.inode, to_append=True)

    def close(self) -> None:
        """Renew none any more."""
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.shutdown(wait=False, cancel_futures=True)

    def refused(self, attributes: Attributes) -> None:
        """A dataserver refused the token of a content: the next one is to be a new one, and ours."""
        with self._lock:
            self._proof_key, self._new_key_at = None, 0.0
            kept = self._kept.get(attributes.file_id)
            if kept is not None:
                kept.refused = True

    def _in_background(self, what: Callable[..., None], *arguments: object) -> None:
        with self._lock:
            self._worker = self._worker or ThreadPoolExecutor(1, "tokens")
            if not self._closed:
                self._worker.submit(what, *arguments)

    def _renew_key(self) -> None:
        with suppress(SpeedwellError):
            key = self._metadata.proof_key()
            with self._lock:
                self._proof_key = key
                self._new_key_at = self._clock() + (PAUSE_SECONDS if key is None else key.valid_ms / 1000)

    def _renew(self, attributes: Attributes, right: int) -> None:
        with suppress(SpeedwellError):
            newest = (self.look_up_to_write(attributes) if right & WRITE
                      else self._metadata.lookup_inode(attributes.inode))
            if newest.file_id == attributes.file_id:
                self._replace(attributes.token, newest)

    def _replace(self, shown: bytes, newest: Attributes) -> None:
        with self._lock:
            before = self._kept.pop(newest.file_id, None)
        kept = self._newest(newest)
        if before is not None and kept is not None:
            kept.passed = frozenset(each for each in (*before.passed, before.token, shown) if each != kept.token
                                    and tokens.read(each).signed_ms >= kept.claims.signed_ms)

    def _newest(self, attributes: Attributes) -> _Kept | None:
        """The token seen last of the content, in `attributes` or before."""
        with self._lock:
            kept = self._kept.get(attributes.file_id)
            if kept is not None and (kept.token == attributes.token or attributes.token in kept.passed):
                return kept
            try:
                claims = tokens.read(attributes.token)
            except TokenRefused:
                return kept
            if kept is None or claims.signed_ms > kept.claims.signed_ms or claims.rights & ~kept.claims.rights:
                kept = self._kept[attributes.file_id] = _Kept(
                    attributes.token, claims, self._clock() + claims.valid_ms / 2000,
                    passed=frozenset() if kept is None else kept.passed)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return kept
