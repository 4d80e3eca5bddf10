"""Following symbolic links, for clients that are no mount: there the kernel does it.

A target that begins with a slash leads from the filesystem's own root, whatever is mounted where.
"""

from typing import Protocol

from speedwell.fs import paths
from speedwell.fs.errors import NoSuchFile, NotADirectory, TooManySymbolicLinks
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, SYMBOLIC_LINK, Attributes

MAX_FOLLOWED = 40
"""As on Linux."""


class LooksUp(Protocol):
    """What is asked of the nameserver."""

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        """Raises NoSuchFile, NotADirectory."""


def follow(names: LooksUp, path: bytes, *, last: bool = True) -> bytes:
    """The path without links that `path` leads to; `last`: also where its last name is a link.

    What it leads to need not exist. Raises NoSuchFile (a directory on the way), NotADirectory, NameTooLong,
    TooManySymbolicLinks.
    """
    waiting = paths.components(path)[::-1]
    here = paths.ROOT
    followed = 0
    while waiting:
        name = waiting.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            here = paths.parent(here)
            continue
        here = paths.join(here, name)
        if not waiting and not last:
            return here
        attributes = _look_up(names, here, needed=bool(waiting))
        if attributes is None:
            return here
        if attributes.type == SYMBOLIC_LINK:
            followed += 1
            if followed > MAX_FOLLOWED:
                raise TooManySymbolicLinks(f"{paths.display(path)} leads through more than {MAX_FOLLOWED} symbolic "
                                           "links")
            waiting += attributes.target.split(b"/")[::-1]
            here = paths.ROOT if attributes.target.startswith(b"/") else paths.parent(here)
        elif waiting and attributes.type != DIRECTORY:
            raise NotADirectory(f"{paths.display(here)} is not a directory")
    return here


def _look_up(names: LooksUp, path: bytes, *, needed: bool) -> Attributes | None:
    try:
        return names.lookup(path, True)
    except NoSuchFile:
        if needed:
            raise
        return None
