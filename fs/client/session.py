"""What a client holds at the nameserver: locks, and files without a name that it has open."""

import logging
import secrets
import threading

from fs.client.metadata import MetadataClient
from fs.errors import SpeedwellError

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
RETRY_SECONDS = 1.0


class Session:
    """A number that the nameserver knows this client by, renewed from its first use on. Thread-safe."""

    def __init__(self, metadata: MetadataClient) -> None:
        self._metadata = metadata
        self._number = secrets.randbits(63) | 1
        self._lock = threading.Lock()
        self._renewing: threading.Thread | None = None
        self._ended = threading.Event()
        self.lease_seconds = 0.0

    @property
    def number(self) -> int:
        """For a request; from the first on the session is kept alive. Raises NameserverUnavailable."""
        if self._renewing is None:
            with self._lock:
                if self._renewing is None:
                    self.lease_seconds = self._metadata.renew_session(self._number).lease_seconds
                    self._renewing = threading.Thread(target=self._renew, name="session", daemon=True)
                    self._renewing.start()
        return self._number

    def release(self, inodes: list[int]) -> None:
        """Let files without a name go. Never raises: a nameserver that is away drops them with the session."""
        try:
            self._metadata.release(self._number, inodes)
        except SpeedwellError as error:
            log.warning("the nameserver keeps removed files until this mount ends: %s", error)

    def end(self) -> None:
        """Give up all that is held. Never raises."""
        with self._lock:
            renewing = self._renewing
            self._ended.set()
        if renewing is None:
            return
        try:
            self._metadata.end_session(self._number)
        except SpeedwellError as error:
            log.warning("the nameserver keeps this mount's locks until its lease ends: %s", error)

    def _renew(self) -> None:
        pause_seconds = self.lease_seconds / RENEWALS_PER_LEASE
        while not self._ended.wait(pause_seconds):
            try:
                reply = self._metadata.renew_session(self._number)
            except SpeedwellError as error:
                log.warning("this mount's locks cannot be renewed: %s", error)
                pause_seconds = RETRY_SECONDS
                continue
            if reply.is_new:
                log.error("the nameserver has not heard of this mount for longer than its lease: the locks its "
                          "programs held are lost, and removed files they have open")
            self.lease_seconds = reply.lease_seconds
            pause_seconds = self.lease_seconds / RENEWALS_PER_LEASE
