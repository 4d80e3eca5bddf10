"""What can go wrong in the filesystem, each error with the errno a program on the mount sees.

A message is one sentence a user can act on; it names the file, the field or the server it speaks of.
"""

import errno
import os
from typing import ClassVar


def reason(error: BaseException) -> str:
    """Why something failed, as the end of a sentence: never empty, without Python's numbers and names of errors where
    the system has words."""
    words = error.strerror if isinstance(error, OSError) else None
    if not words and isinstance(error, OSError) and error.errno:
        words = os.strerror(error.errno)
    return words or str(error).strip() or _WITHOUT_WORDS.get(type(error), type(error).__name__)


_WITHOUT_WORDS: dict[type[BaseException], str] = {TimeoutError: "no answer in time",
                                                  EOFError: "the connection was closed"}


class SpeedwellError(Exception):
    """Base of every error of the filesystem. `errno` is what the mount answers."""

    errno: ClassVar[int] = errno.EIO
    request_id = ""
    """Of the request that failed (`speedwell.fs.tracing`), by which the servers' logs have it."""

    @property
    def message(self) -> str:
        return str(self)


# ------------------------------------------------------------------ the namespace


class NoSuchFile(SpeedwellError):
    """The file or directory does not exist."""

    errno = errno.ENOENT


class AlreadyExists(SpeedwellError):
    """The name is taken."""

    errno = errno.EEXIST


class NotADirectory(SpeedwellError):
    """A component of the path, or the path itself, is not a directory."""

    errno = errno.ENOTDIR


class IsADirectory(SpeedwellError):
    """The operation is for files, the path names a directory."""

    errno = errno.EISDIR


class DirectoryNotEmpty(SpeedwellError):
    """Only an empty directory can be removed or replaced."""

    errno = errno.ENOTEMPTY


class DeviceBusy(SpeedwellError):
    """The object is in use: the root directory cannot be renamed or removed."""

    errno = errno.EBUSY


class ProgramRuns(SpeedwellError):
    """A file that a program runs from cannot be changed."""

    errno = errno.ETXTBSY


class StaleFile(SpeedwellError):
    """The file has a new content (truncated, replaced) or is gone: open it again."""

    errno = errno.ESTALE


class Superseded(SpeedwellError):
    """Another version was published first, or the base has grown: make it again from the newest."""

    errno = errno.EAGAIN


class NotAuthenticated(SpeedwellError):
    """One end of a connection has no certificate that the other takes; the message says what is wrong with it."""

    errno = errno.EACCES


class IdentityError(SpeedwellError):
    """What was asked for cannot be done with these certificates; the message says why."""

    errno = errno.EACCES


class NotAuthorised(SpeedwellError):
    """The role in a certificate does not allow that request."""

    errno = errno.EACCES


class NotPermitted(SpeedwellError):
    """Nobody may do this to such a file."""

    errno = errno.EPERM


class TooManyLinks(SpeedwellError):
    """The file has as many names as it can have."""

    errno = errno.EMLINK


class QuotaExceeded(SpeedwellError):
    """A directory's quota allows no more; the message names the directory."""

    errno = errno.EDQUOT


class CrossesQuota(SpeedwellError):
    """A name would count toward two quotas, or too much would change from one to another: copy instead."""

    errno = errno.EXDEV


class TooManySymbolicLinks(SpeedwellError):
    """A path leads through so many symbolic links that they may lead in a circle."""

    errno = errno.ELOOP


class NoSuchAttribute(SpeedwellError):
    """The file has no extended attribute of that name."""

    errno = errno.ENODATA


class Locked(SpeedwellError):
    """Somebody else holds a lock that conflicts."""

    errno = errno.EAGAIN


class WouldDeadlock(SpeedwellError):
    """Whoever holds the lock waits, directly or not, for a lock of the one who asks."""

    errno = errno.EDEADLK


class TooManyLocks(SpeedwellError):
    """No more locks can be held or waited for, or the session that asks has lost its lease."""

    errno = errno.ENOLCK


class LocksLost(SpeedwellError):
    """The mount was silent for longer than its session's lease: the locks of its programs may be others' now."""


class StaleEpoch(SpeedwellError):
    """The file's set of replicas has changed since the sender learnt of it."""

    errno = errno.EAGAIN


# ------------------------------------------------------------------ requests


class InvalidArgument(SpeedwellError):
    """A field of a request is out of its range; the message names the field."""

    errno = errno.EINVAL


class InvalidName(InvalidArgument):
    """A path is relative, has a NUL, a `.` or `..` component, or is not normalised."""


class NameTooLong(SpeedwellError):
    """A name has more than 255 bytes or a path more than 4096."""

    errno = errno.ENAMETOOLONG


class NotSupported(SpeedwellError):
    """The filesystem does not do this."""

    errno = errno.EOPNOTSUPP


class FileTooLarge(SpeedwellError):
    """The file would be longer than a file can be."""

    errno = errno.EFBIG


class FileClosed(SpeedwellError):
    """The reader, appender or client has been closed."""

    errno = errno.EBADF


# ------------------------------------------------------------------ servers


class NoSpace(SpeedwellError):
    """A dataserver's disk, or every dataserver's disk, is full."""

    errno = errno.ENOSPC


class NotLeader(SpeedwellError):
    """Another nameserver leads: ask that one. A change may have been carried out."""


class NotOwner(NotLeader):
    """Another nameserver owns that block of the namespace; the message has its address and the epoch."""


class Conflict(NotLeader):
    """Another owner changed what a change was decided by, again and again: try again."""


class NameserverUnavailable(SpeedwellError):
    """The nameserver does not answer; the message has its address."""


class NamespaceRebuilding(NameserverUnavailable):
    """The nameserver gets its namespace back from the dataservers; the message says what it waits for."""


class WrongNamespace(SpeedwellError):
    """A dataserver belongs to another namespace than the nameserver keeps."""


class NamespaceRolledBack(SpeedwellError):
    """The nameserver's store is an old copy of the namespace: it is only read."""

    errno = errno.EROFS


class DataserverInUse(SpeedwellError):
    """A dataserver cannot be removed: it is alive, or files have their last replica there."""


class TokenRefused(SpeedwellError):
    """A dataserver serves nobody without a token of the nameserver that says so; the message says what is wrong."""

    errno = errno.EACCES


class NotReady(SpeedwellError):
    """A dataserver has not heard yet whom it may serve."""

    errno = errno.EAGAIN


class NoReplicaAvailable(SpeedwellError):
    """No live dataserver can hold or serve the file."""


class ReadFailed(SpeedwellError):
    """Every replica was tried and none delivered the bytes."""


class TooFewReplicas(SpeedwellError):
    """A change would be acknowledged with fewer replicas than `--min-replicas` of the nameserver asks for."""


class AppendFailed(SpeedwellError):
    """An append was not acknowledged; nothing of it is visible."""


class WriteFailed(SpeedwellError):
    """A change of a file was not acknowledged; nothing of it is visible."""


class ProtocolError(SpeedwellError):
    """The other side sent something that is not the protocol."""


class StorageFailed(SpeedwellError):
    """The local disk or database of a server failed."""


class DatabaseDamaged(StorageFailed):
    """What the nameserver's database has on its disk is not what was written there."""


class InternalError(SpeedwellError):
    """A server failed in a way it did not foresee; its log has the details."""


_BY_NAME: dict[str, type[SpeedwellError]] = {
    kind.__name__: kind for kind in [*globals().values()]
    if isinstance(kind, type) and issubclass(kind, SpeedwellError)
}


def named(name: str, message: str) -> SpeedwellError:
    """The error of that class name, as an answer of another process carries it."""
    return _BY_NAME.get(name, InternalError)(message)
