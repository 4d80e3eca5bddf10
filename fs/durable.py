"""Replacing files: a reader, or a machine that loses power, finds the old content or the new one, never a part."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

SYNCS_AT_ONCE = 64
"""File systems write what is waited for at once in one go."""


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Give a file this content; it is on the disk, with its name, when this returns. `mode` is that of a new file,
    less the umask. Raises OSError; the old content is there then."""
    replace_all([(path, content)], mode)


def replace_all(contents: Sequence[tuple[Path, bytes]], mode: int = 0o600) -> None:
    """As `replace`, for each in their order, once all are on the disk, which is waited for together."""
    temporaries = [_beside(path) for path, _ in contents]
    try:
        for temporary, (path, content) in zip(temporaries, contents, strict=True):
            with _errors_name(path), _create(temporary, mode) as stream:
                stream.write(content)
        _sync_all(temporaries)
        for temporary, (path, _) in zip(temporaries, contents, strict=True):
            with _errors_name(path):
                temporary.replace(path)
        _sync_all(list({path.parent for path, _ in contents}))
    finally:
        for temporary in temporaries:
            _remove(temporary)


def replace_others(contents: Iterable[tuple[Path, bytes]]) -> None:
    """As `replace_all`; nothing is written, and nothing waits for the disk, where that is there already."""
    replace_all([(path, content) for path, content in contents
                 if not path.exists() or path.read_bytes() != content])


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A stream for the new content of a file, which it gets at the end of the `with` block, as by `replace`; not if
    that raises."""
    temporary = _beside(path)
    try:
        with _errors_name(path):
            with _create(temporary, mode) as stream:
                yield stream
            _sync(temporary)
            temporary.replace(path)
        _sync(path.parent)
    finally:
        _remove(temporary)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Those of what is beside it, and of writing, which have no name, get the file's."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(_beside(path))):
            error.filename, error.filename2 = str(path), None
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):     # a file system that cannot be written to says so of any name
        path.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _create(path: Path, mode: int) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def _sync_all(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        list(map(_sync, paths))
        return
    from concurrent.futures import ThreadPoolExecutor  # takes 10 ms

    with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
        list(pool.map(_sync, paths))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
