"""What can be configured on a nameserver."""

from dataclasses import dataclass

from speedwell.fs.errors import InvalidArgument
from speedwell.fs.nameserver.replicas.registry import LEASE_SECONDS
from speedwell.fs.nameserver.service import request_fields as requests

DEFAULT_REPLICATION = 3
DEFAULT_MIN_REPLICAS = 2
FSYNC_POLICIES = ALWAYS, ON_REQUEST, NEVER = "always", "fsync", "never"
DEFAULT_FSYNC = ON_REQUEST
DEFAULT_CHUNK_BYTES = 256 << 20
DEFAULT_DELETION_GRACE_SECONDS = 60.0
DEFAULT_SESSION_LEASE_SECONDS = 15.0
DEFAULT_LEASE_SECONDS = LEASE_SECONDS
DEFAULT_RECOVERY_GRACE_SECONDS = 60.0
DEFAULT_MIRRORS = 3
DEFAULT_TOKEN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults as in the Mayflower paper, section 5. Raises InvalidArgument naming the setting."""

    replication: int = DEFAULT_REPLICATION
    chunk_size_bytes: int = DEFAULT_CHUNK_BYTES
    deletion_grace_seconds: float = DEFAULT_DELETION_GRACE_SECONDS
    session_lease_seconds: float = DEFAULT_SESSION_LEASE_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    recovery_grace_seconds: float = DEFAULT_RECOVERY_GRACE_SECONDS
    mirrors: int = DEFAULT_MIRRORS
    min_replicas: int = DEFAULT_MIN_REPLICAS
    fsync: str = DEFAULT_FSYNC
    token_seconds: float = DEFAULT_TOKEN_SECONDS
    no_tokens: bool = False
    encrypt_data: bool = False

    def least(self, replication: int) -> int:
        """So many replicas hold a change before it is acknowledged, of a file that is to have `replication`."""
        return min(self.min_replicas, replication)

    def __post_init__(self) -> None:
        requests.number(self.replication, "replication", requests.MAX_REPLICATION, 1)
        requests.number(self.chunk_size_bytes, "chunk-size", requests.MAX_CHUNK_BYTES,
                        requests.MIN_CHUNK_BYTES)
        requests.number(self.min_replicas, "min-replicas", requests.MAX_REPLICATION, 1)
        if self.fsync not in FSYNC_POLICIES:
            raise InvalidArgument(f"fsync: {self.fsync!r} is not one of {', '.join(FSYNC_POLICIES)}")
        requests.number(self.mirrors, "mirrors", requests.MAX_REPLICATION)
        if not 1 <= self.token_seconds <= 86400:
            raise InvalidArgument(f"token-lifetime: {self.token_seconds:g} s is not between a second and a day")
        if not 0 <= self.deletion_grace_seconds <= 366 * 86400:
            raise InvalidArgument(f"deletion-grace: {self.deletion_grace_seconds:g} s is not between 0 and "
                                  "a year")
        if not 1 <= self.session_lease_seconds <= 3600:
            raise InvalidArgument(f"session-lease: {self.session_lease_seconds:g} s is not between a second and "
                                  "an hour")
        if not 1 <= self.lease_seconds <= 3600:
            raise InvalidArgument(f"lease: {self.lease_seconds:g} s is not between a second and an hour")
        if not 0 <= self.recovery_grace_seconds <= 366 * 86400:
            raise InvalidArgument(f"recovery-grace: {self.recovery_grace_seconds:g} s is not between 0 and a year")
