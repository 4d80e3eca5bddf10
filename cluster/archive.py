"""A backup: a tar archive (POSIX.1-2001, pax) of names, attributes and contents, which tar(1) reads, too."""

from __future__ import annotations

import os
import secrets
import tarfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Self

from speedwell.cluster.errors import InvalidArchive
from speedwell.cluster.transfer import make_directory
from speedwell.fs import paths
from speedwell.fs.client.names.trees import walk
from speedwell.fs.errors import NoSuchFile
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.client.read.reader import Reader

PIECE_BYTES = 4 << 20
XATTR = "SCHILY.xattr."
"""What tar(1) calls an extended attribute."""

_KINDS = {DIRECTORY: tarfile.DIRTYPE, REGULAR: tarfile.REGTYPE, SYMBOLIC_LINK: tarfile.SYMTYPE}
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}

Said = Callable[[str], None]


class Entries(Counter[str]):
    """How many an archive has, by kind."""

    def add(self, kind: bytes) -> None:
        self["directory" if kind == tarfile.DIRTYPE else "file"] += 1

    def __str__(self) -> str:
        return f"{counted(self['file'], 'file')} and {counted(self['directory'], 'directory')}"


def write(client: Client, directory: bytes, stream: IO[bytes], progress: Callable[[int], None],
          warn: Said) -> Entries:
    """Archive what is below a stored directory; returns what was written. Each file is as it was when it
    was read. What no archive can hold is told by `warn`, and what is removed meanwhile is left out."""
    first: dict[int, str] = {}
    found = Entries()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, **_TEXT) as archive:
        for path, attributes in walk(client, directory):
            if attributes.type not in _KINDS:
                warn(f"{paths.display(path)}: not a regular file, directory or link, not in the backup")
                continue
            with suppress(NoSuchFile):
                info = _described(client, path, attributes, os.fsdecode(path[len(directory):].lstrip(b"/")))
                if attributes.type == REGULAR and attributes.inode in first:
                    info.type, info.linkname, info.size = tarfile.LNKTYPE, first[attributes.inode], 0
                if info.isreg():
                    with client.open_read(path) as reader:
                        info.size = reader.size
                        archive.addfile(info, _Content(reader, progress))
                    if attributes.link_count > 1:
                        first[attributes.inode] = info.name
                else:
                    archive.addfile(info)
                found.add(info.type)
    return found


def read(client: Client, directory: bytes, stream: IO[bytes], progress: Callable[[int], None]) -> Entries:
    """Make everything that an archive holds below a stored directory; files and links that are there are replaced.
    Returns what there was. Raises InvalidArchive for what is no whole archive: what came before the
    damage is there then."""
    directories: list[tuple[bytes, tarfile.TarInfo]] = []
    found = Entries()
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, **_TEXT) as archive:
            for info in archive:
                path = paths.join(directory, paths.normalise(b"/" + os.fsencode(info.name)).lstrip(b"/"))
                if info.isdir():
                    make_directory(client, path)
                    directories.append((path, info))
                else:
                    _make_file(client, directory, path, info, archive, progress)
                found.add(info.type)
            if not getattr(archive, "is_whole", False):
                raise InvalidArchive(f"the archive is cut off after {found.total()} entries")
    except tarfile.TarError as error:
        raise InvalidArchive(f"this is no whole archive (after {found.total()} entries): {error}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise InvalidArchive(f"the archive is cut off after {found.total()} entries: {error}") from None
    for path, info in reversed(directories):    # times last: each entry changes them
        _describe(client, path, info)
    return found


# ------------------------------------------------------------------ private


class _Member(tarfile.TarInfo):
    """Notes whether the archive has an end: tarfile does not tell one that was cut off between two entries."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:      # type: ignore[attr-defined]
            archive.is_whole = True         # type: ignore[attr-defined]
            raise


class _Content:
    """What tarfile reads a file from. A file that gets shorter meanwhile has zeros there, as with tar(1)."""

    def __init__(self, reader: Reader, progress: Callable[[int], None]) -> None:
        self._reader = reader
        self._progress = progress
        self._offset = 0

    def read(self, size: int = 0, /) -> bytes:
        found = self._reader.read(self._offset, size)
        self._offset += size
        self._progress(size)
        return found.ljust(size, b"\0")


def _described(client: Client, path: bytes, attributes: Attributes, name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = _KINDS[attributes.type]
    info.mode, info.uid, info.gid = attributes.mode, attributes.uid, attributes.gid
    info.linkname = os.fsdecode(attributes.target)
    info.pax_headers = {"mtime": f"{Decimal(attributes.mtime_ns).scaleb(-9):f}"}
    if attributes.has_extended_attributes:
        for key, value in client.metadata.posix.list_extended_attributes(path).items():
            info.pax_headers[XATTR + key.decode(**_TEXT)] = value.decode(**_TEXT)
    return info


def _make_file(client: Client, directory: bytes, path: bytes, info: tarfile.TarInfo, archive: tarfile.TarFile,
               progress: Callable[[int], None]) -> None:
    """Under another name first, so that it appears whole."""
    hidden = paths.join(paths.parent(path), b".restore.%b" % secrets.token_hex(8).encode())
    if info.islnk():
        target = paths.normalise(b"/" + os.fsencode(info.linkname)).lstrip(b"/")
        client.metadata.posix.link(paths.join(directory, target), hidden)
    elif info.issym():
        client.metadata.posix.make_symbolic_link(hidden, os.fsencode(info.linkname), os.geteuid(), os.getegid())
    elif info.isreg():
        client.create(hidden, 0o600)
    else:
        raise InvalidArchive(f"{paths.display(path)}: not a regular file, directory or link")
    try:
        if info.isreg() and (content := archive.extractfile(info)) is not None:
            with client.open_append(hidden) as appender:
                while piece := content.read(PIECE_BYTES):
                    appender.write(piece)
                    progress(len(piece))
        if not info.islnk():
            _describe(client, hidden, info)
        client.rename(hidden, path)
        if info.islnk():
            with suppress(NoSuchFile):  # both names were the same file already: rename(2) leaves them
                client.remove(hidden)
    except BaseException:
        with suppress(NoSuchFile):
            client.remove(hidden)
        raise


def _describe(client: Client, path: bytes, info: tarfile.TarInfo) -> None:
    try:
        mtime_ns = Decimal(info.pax_headers.get("mtime", info.mtime)) * 10**9
        if not -2**63 <= mtime_ns < 2**63:
            raise ValueError
    except (ArithmeticError, ValueError):
        raise InvalidArchive(f"{info.name}: its time of change is none") from None
    for key, value in info.pax_headers.items():
        if key.startswith(XATTR):
            name = key.removeprefix(XATTR).encode(**_TEXT)
            client.metadata.posix.set_extended_attribute(path, name, value.encode(**_TEXT))
    if os.geteuid() == 0:   # only root gives files to others
        client.set_attributes(path, uid=info.uid, gid=info.gid)
    client.set_attributes(path, mode=None if info.issym() else info.mode & 0o7777,
                          mtime_ns=int(mtime_ns))
