"""Paths of the filesystem: absolute, normalised bytes such as `/a/b`; the root is `/`.

A mount names inodes instead: `of_inode(directory)` is that directory, `join(of_inode(directory), name)` what has the
name there, wherever the directory is.

A name has 1 to 255 bytes, a path at most 4096, neither has a NUL; `.` and `..` are refused and not
resolved, because what they mean depends on links that only the mount knows.
"""

import os
import re

from speedwell.fs.errors import InvalidName, NameTooLong

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096
ROOT = b"/"

_INODE_PREFIX = b"/\0"
"""No name has a NUL: what follows is the number of an inode."""
_BESIDE_INODE = re.compile(rb"/\0[0-9]{1,20}(?:/[^/\0]{1,255})?")    # what most requests of a mount name


def display(path: bytes) -> str:
    """`path` for messages: printable, shortened in the middle if it is long."""
    text = path.decode("utf-8", "backslashreplace")
    if path.startswith(_INODE_PREFIX):
        text = f"inode {text[2:]}"
    if not text.isprintable():
        text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-80:]}"


def normalise(path: str | bytes, field: str = "path") -> bytes:
    """The wire form of a path a user gave: repeated and trailing slashes go away.

    Raises InvalidName or NameTooLong, with `field` in the message.
    """
    raw = os.fsencode(path) if isinstance(path, str) else bytes(path)
    if _BESIDE_INODE.fullmatch(raw) and not raw.endswith((b"/.", b"/..")):
        return raw
    if not raw.startswith(b"/"):
        raise InvalidName(f"{field}: {display(raw)!r} is not absolute (it must begin with /)")
    normalised = b"/" + b"/".join(part for part in raw.split(b"/") if part)
    components(normalised, field)
    return normalised


def components(path: bytes, field: str = "path") -> list[bytes]:
    """The names of a path in wire form, none for the root and for an inode; below an inode the names from there.

    Raises InvalidName or NameTooLong, with `field` in the message, for anything not in wire form.
    """
    if path.startswith(_INODE_PREFIX):
        number, slash, rest = path[2:].partition(b"/")
        if not number.isdigit() or len(number) > 20 or int(number) >= 2**64:
            raise InvalidName(f"{field}: {display(path)!r} has no inode after its NUL byte")
        path = slash + rest or ROOT
    if path == ROOT:
        return []
    if not path:
        raise InvalidName(f"{field}: is empty")
    if len(path) > MAX_PATH_BYTES:
        raise NameTooLong(f"{field}: {len(path)} bytes, at most {MAX_PATH_BYTES} are allowed")
    if b"\0" in path:
        raise InvalidName(f"{field}: {display(path)!r} has a NUL byte")
    names = path.split(b"/")
    if names[0]:
        raise InvalidName(f"{field}: {display(path)!r} is not absolute (it must begin with /)")
    del names[0]
    for name in names:
        if len(name) > MAX_NAME_BYTES:
            raise NameTooLong(f"{field}: the name {display(name)!r} has {len(name)} bytes, "
                              f"at most {MAX_NAME_BYTES} are allowed")
        if name in (b"", b".", b".."):
            problem = f"a {name.decode()!r} component" if name else "an empty component"
            raise InvalidName(f"{field}: {display(path)!r} has {problem}")
    return names


def join(directory: bytes, name: bytes) -> bytes:
    """The path of `name` in `directory` (both in wire form)."""
    return directory + name if directory == ROOT else directory + b"/" + name


def parent(path: bytes) -> bytes:
    """The directory that holds `path`; the root's parent is the root."""
    return path[:path.rindex(b"/")] or ROOT


def name(path: bytes) -> bytes:
    """The last name of `path`, empty for the root."""
    return path[path.rindex(b"/") + 1:]


def is_within(path: bytes, directory: bytes) -> bool:
    """Whether `path` is `directory` or below it."""
    return path == directory or directory == ROOT or path.startswith(directory + b"/")


def of_inode(number: int) -> bytes:
    """The path that names an inode, whatever its names are."""
    return _INODE_PREFIX + b"%d" % number


def below(directory: int, name: bytes) -> bytes:
    """The path of what has that name in a directory, whatever the directory's names are."""
    return _INODE_PREFIX + b"%d/%b" % (directory, name)


def is_inode(path: bytes) -> bool:
    """Whether `path` is one that `of_inode` made."""
    return path.startswith(_INODE_PREFIX) and path[2:].isdigit() and len(path) <= 22


def inode_number(path: bytes) -> int | None:
    """The inode that a path in wire form names, or begins at; None for one that begins at the root."""
    return int(path[2:].partition(b"/")[0]) if path.startswith(_INODE_PREFIX) else None
