"""Copying files and trees between this machine and an installation.

A file appears at its destination whole or not at all, whatever stops the copy. Trees are copied by a few
threads; the first failure stops the rest.
"""

from __future__ import annotations

import concurrent.futures
import errno
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from speedwell.fs import paths
from speedwell.fs.errors import AlreadyExists, IsADirectory, NotADirectory
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes

if TYPE_CHECKING:
    from speedwell.fs.client import Client

WORKERS = 4
RECORD_MAX_BYTES = 4 << 20
READ_BYTES = 1 << 20

Progress = Callable[[int], None]
Place = TypeVar("Place", bytes, Path)
Job = TypeVar("Job", "Upload", "Download")


class Stopped(Exception):
    """This copy was given up because another one failed or the user interrupted."""


@dataclass(frozen=True)
class Upload:
    """A file of this machine and where it goes."""

    source: Path
    destination: bytes
    mode: int
    size_bytes: int


@dataclass(frozen=True)
class Download:
    """A stored file and where it goes on this machine."""

    source: bytes
    destination: Path
    mode: int
    size_bytes: int


@dataclass
class Tree(Generic[Place, Job]):
    """What to make of a directory: directories (path, mode) with parents first, files to copy, and symbolic links
    (path, target)."""

    directories: list[tuple[Place, int]] = field(default_factory=list)
    files: list[Job] = field(default_factory=list)
    links: list[tuple[Place, bytes]] = field(default_factory=list)


# ------------------------------------------------------------------ planning


def lookup_or_none(client: Client, path: bytes) -> Attributes | None:
    """Fresh attributes; None if there is no such file."""
    from speedwell.fs.errors import NoSuchFile

    try:
        return client.lookup(path, fresh=True)
    except NoSuchFile:
        return None


def destination_in(client: Client, destination: str, name: bytes, *, follow: bool = True) -> bytes:
    """Where a file called `name` goes: into `destination` if that is a directory (or leads to one), else to that
    path; with `follow` to what a symbolic link there leads to.

    Raises NotADirectory if `destination` ends in a slash and is none.
    """
    path = client.follow(destination)
    there = lookup_or_none(client, path)
    if there is not None and there.type == DIRECTORY:
        return client.follow(paths.join(path, name), last=follow) if name else path
    if destination.endswith("/"):
        raise NotADirectory(f"{paths.display(path)}/ is not a directory")
    return client.follow(destination, last=follow)


def require_directory(client: Client, destination: str) -> None:
    """Raises NotADirectory unless `destination` is a directory (several files go there)."""
    path = client.follow(destination)
    if client.lookup(path, fresh=True).type != DIRECTORY:
        raise NotADirectory(f"{paths.display(path)} is not a directory")


def plan_uploads(source: Path, destination: bytes, skipped: Callable[[str], None]) -> Tree[bytes, Upload]:
    """What to make of the tree at `source`. Sockets, pipes and devices are passed over, with a sentence to
    `skipped`."""
    tree: Tree[bytes, Upload] = Tree()
    pending = [(source, destination)]
    while pending:
        here, there = pending.pop()
        tree.directories.append((there, stat.S_IMODE(here.stat().st_mode) & 0o777))
        for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
            path = Path(entry.path)
            target = paths.join(there, os.fsencode(entry.name))
            if entry.is_symlink():
                tree.links.append((target, os.fsencode(path.readlink())))
            elif entry.is_dir(follow_symlinks=False):
                pending.append((path, target))
            elif entry.is_file():
                status = entry.stat()
                tree.files.append(Upload(path, target, stat.S_IMODE(status.st_mode) & 0o777, status.st_size))
            else:
                skipped(f"{path}: not a regular file or directory, not copied")
    return tree


def plan_downloads(client: Client, source: bytes, destination: Path, skipped: Callable[[str], None]
                   ) -> Tree[Path, Download]:
    """What to make of the stored tree at `source`. Sockets, pipes and devices are passed over, with a sentence to
    `skipped`."""
    from speedwell.fs.client.names.trees import walk

    tree: Tree[Path, Download] = Tree(directories=[(destination, client.lookup(source).mode)])
    for path, attributes in walk(client, source):
        target = destination / os.fsdecode(path[len(source):].lstrip(b"/"))
        if attributes.type == DIRECTORY:
            tree.directories.append((target, attributes.mode))
        elif attributes.type == SYMBOLIC_LINK:
            tree.links.append((target, attributes.target))
        elif attributes.type == REGULAR:
            tree.files.append(Download(path, target, attributes.mode, attributes.size))
        else:
            skipped(f"{paths.display(path)}: not a regular file or directory, not copied")
    return tree


# ------------------------------------------------------------------- copying


def upload(client: Client, job: Upload, progress: Progress, replicas: Sequence[str] = ()) -> None:
    """Copy a file in, to the named dataservers if any. Raises OSError for the source, SpeedwellError for the rest."""
    with job.source.open("rb") as source:
        client.store(job.destination, source.fileno(), progress, mode=job.mode, replicas=replicas)


def download(client: Client, job: Download, progress: Progress) -> None:
    """Copy one file out: to a temporary name, renamed when complete. A destination that is a device or a
    pipe is written to as it is."""
    destination = Path(os.path.realpath(job.destination))
    if destination.exists() and not destination.is_file():
        if destination.is_dir():
            raise IsADirectory(f"{destination} is a directory")
        with destination.open("wb") as output:
            client.fetch(job.source, output.fileno(), progress)
        return
    if not destination.parent.is_dir():
        code = errno.ENOTDIR if destination.parent.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), str(destination.parent))
    prefix = f".{destination.name[:100]}."
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=destination.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(destination)) from None
    try:
        try:
            client.fetch(job.source, descriptor, progress)
            os.fchmod(descriptor, job.mode & 0o777 & ~_umask())
        finally:
            os.close(descriptor)
        Path(temporary).replace(destination)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def upload_tree(client: Client, tree: Tree[bytes, Upload], progress: Progress, replicas: Sequence[str] = ()) -> None:
    """Make the directories, then copy the files, then make the links. Directories that exist are used as they are,
    files and links are replaced."""
    for path, mode in tree.directories:
        make_directory(client, path, mode)
    run_all([lambda report, job=job: upload(client, job, report, replicas)  # type: ignore[misc]
             for job in tree.files], progress)
    for path, target in tree.links:
        hidden = paths.join(paths.parent(path), b".link.%b" % secrets.token_hex(8).encode())
        client.metadata.posix.make_symbolic_link(hidden, target, os.geteuid(), os.getegid())
        try:
            client.rename(hidden, path)
        except BaseException:
            client.remove(hidden)
            raise


def download_tree(client: Client, tree: Tree[Path, Download], progress: Progress) -> None:
    """Make the directories, copy the files, make the links, then give the directories their modes."""
    made = []
    for path, mode in tree.directories:
        if not path.is_dir():
            path.mkdir()
            made.append((path, mode))
    run_all([lambda report, job=job: download(client, job, report) for job in tree.files],  # type: ignore[misc]
            progress)
    for path, target in tree.links:
        hidden = path.with_name(f".link.{secrets.token_hex(8)}")
        hidden.symlink_to(os.fsdecode(target))
        try:
            hidden.replace(path)
        except BaseException:
            hidden.unlink()
            raise
    for path, mode in reversed(made):  # a read-only directory gets its mode after its entries
        path.chmod(mode & 0o777 & ~_umask())


def run_all(jobs: list[Callable[[Progress], None]], progress: Progress) -> None:
    """Run jobs on a few threads. The first failure, or an interrupt, stops the others at their next
    report of progress and is raised once all have ended."""
    stop = threading.Event()

    def report(count_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        progress(count_bytes)

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(job, report) for job in jobs]
        try:
            done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def append(client: Client, path: bytes, source_fd: int, progress: Progress) -> int:
    """Append what `source_fd` holds up to its end, making the file if there is none; returns the bytes.

    Up to RECORD_MAX_BYTES go as one record, whole or not at all and never interleaved with other writers;
    longer input goes in pieces as it is read.
    """
    client.create(path, exclusive=False)
    with open(source_fd, "rb", buffering=0, closefd=False) as source:
        start = _read_up_to(source.read, RECORD_MAX_BYTES + 1)
        if len(start) <= RECORD_MAX_BYTES:
            if start:
                client.append(path, start)
            progress(len(start))
            return len(start)
        total_bytes = 0
        with client.open_append(path) as appender:
            piece: bytes | None = start
            while piece:
                appender.write(piece)
                total_bytes += len(piece)
                progress(len(piece))
                piece = source.read(READ_BYTES)
        return total_bytes


# --------------------------------------------------------------------- names


def make_directory(client: Client, path: bytes, mode: int = 0o755) -> None:
    """Make a directory unless it is there. Raises NotADirectory if a file has its name."""
    try:
        client.mkdir(path, mode)
    except AlreadyExists:
        if client.lookup(client.follow(path), fresh=True).type != DIRECTORY:
            raise NotADirectory(f"{paths.display(path)} is a file") from None


# ------------------------------------------------------------------- helpers


def _read_up_to(read: Callable[[int], bytes | None], limit_bytes: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < limit_bytes and (piece := read(min(READ_BYTES, limit_bytes - len(pieces)))):
        pieces += piece
    return bytes(pieces)


def _umask() -> int:
    """This process's umask, read without changing it even for a moment (threads create files)."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


