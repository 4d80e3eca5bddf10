"""What a client holds at the nameserver: locks, and files without a name that it has open."""

import logging
import secrets
import threading
import time

from speedwell.fs.client.names.requests import Ask
from speedwell.fs.errors import LocksLost, SpeedwellError
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
RETRY_SECONDS = 1.0
USED_PART = 0.8
"""Of a lease, counted from the sending of the renewal: clocks and scheduling differ by less than the rest."""


class Session:
    """A number that the nameserver knows this client by, renewed from its first use on. Thread-safe.

    `generation` changes when the nameserver has let the session end: what was held before is lost.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._number = secrets.randbits(63) | 1
        self._lock = threading.Lock()
        self._renewing: threading.Thread | None = None
        self._ended = threading.Event()
        self._lasts_until = 0.0
        self.lease_seconds = 0.0
        self.generation = 0

    @property
    def number(self) -> int:
        """For a request; from the first on the session is kept alive. Raises NameserverUnavailable."""
        if self._renewing is None:
            with self._lock:
                if self._renewing is None:
                    self._renew()
                    self._renewing = threading.Thread(target=self._renew_forever, name="session", daemon=True)
                    self._renewing.start()
        return self._number

    def require(self, generation: int) -> tuple[int, int]:
        """The number and `generation`, if all that was locked in it is still held. Raises LocksLost; and
        NameserverUnavailable when nobody says so for longer than the lease."""
        if generation != self.generation or _now() >= self._lasts_until:
            self._renew()
        if generation != self.generation:
            raise LocksLost("the nameserver has not heard of this mount for longer than its session's lease: the "
                            "lock is lost, and the file has to be opened again")
        return self._number, generation

    def lock(self, request: pb.LockRequest) -> pb.LockReply:
        """Raises WouldDeadlock, TooManyLocks. Asking again changes nothing."""
        reply: pb.LockReply = self._ask("Lock", request)
        return reply

    def release(self, inodes: list[int]) -> None:
        """Let files without a name go. Never raises: a nameserver that is away drops them with the session."""
        try:
            self._ask("Release", pb.ReleaseRequest(session=self._number, inodes=inodes))
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
            self._ask("EndSession", pb.EndSessionRequest(session=self._number))
        except SpeedwellError as error:
            log.warning("the nameserver keeps this mount's locks until its lease ends: %s", error)

    # ------------------------------------------------------------------ private

    def _renew(self) -> None:
        sent_at = _now()
        reply: pb.RenewSessionReply = self._ask("RenewSession", pb.RenewSessionRequest(session=self._number))
        if self.generation not in (0, reply.generation):
            log.error("the nameserver has not heard of this mount for longer than its lease: the locks its "
                      "programs held are lost, and removed files they have open")
        self.generation = reply.generation
        self.lease_seconds = reply.lease_seconds
        self._lasts_until = sent_at + reply.lease_seconds * USED_PART

    def _renew_forever(self) -> None:
        pause_seconds = self.lease_seconds / RENEWALS_PER_LEASE
        while not self._ended.wait(pause_seconds):
            try:
                self._renew()
            except SpeedwellError as error:
                log.warning("this mount's locks cannot be renewed: %s", error)
                pause_seconds = RETRY_SECONDS
                continue
            pause_seconds = self.lease_seconds / RENEWALS_PER_LEASE


def _now() -> float:
    """By a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
