"""For whom the holder of a certificate may act, and where: what a URI in the certificate says."""

import re
from collections.abc import Set
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from speedwell.fs import paths
from speedwell.fs.errors import IdentityError, SpeedwellError

SCHEME = "speedwell:?"
NOBODY = 65534
"""Who root is elsewhere, as user and as group: the kernel's overflow id."""

MAX_ID = 2**32 - 2
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")

Ranges = tuple[tuple[int, int], ...]
"""First and last numbers, both included."""


@dataclass(frozen=True)
class Scope:
    """Users and groups, a directory with all below it, and whether root is one of the users."""

    uids: Ranges
    gids: Ranges
    subtree: bytes = paths.ROOT
    root: bool = False

    def has_user(self, uid: int) -> bool:
        return uid == NOBODY or _is_in(uid, self.uids)

    def has_group(self, gid: int) -> bool:
        return gid == NOBODY or _is_in(gid, self.gids)

    def is_only(self, uids: Set[int]) -> bool:
        """Whether it has no user but `uids`."""
        return all(last - first < len(uids) and uids >= set(range(first, last + 1)) for first, last in self.uids)

    def __str__(self) -> str:
        """As a certificate has it."""
        return SCHEME + urlencode({"uids": _text(self.uids), "gids": _text(self.gids), "subtree": self.subtree,
                                   "root": "allowed" if self.root else "nobody"}, safe=",/")

    def described(self) -> str:
        """For messages."""
        users = f"the users {_text(self.uids)}" + " and root" * self.root
        return f"{users} in {paths.display(self.subtree)}"


def parsed(uri: str) -> Scope:
    """What `str` made. Raises IdentityError for anything else."""
    try:
        if not uri.startswith(SCHEME):
            raise ValueError(uri)
        fields = {key: value for key, [value] in parse_qs(uri.removeprefix(SCHEME), strict_parsing=True,
                                                          encoding="utf-8", errors="surrogateescape").items()}
        uids, gids, subtree, root = (fields.pop(key) for key in ("uids", "gids", "subtree", "root"))
        if fields or root not in ("allowed", "nobody"):
            raise ValueError(uri)
        return Scope(ranges(uids), ranges(gids), paths.normalise(subtree, "subtree"), root == "allowed")
    except (KeyError, ValueError, SpeedwellError):
        raise IdentityError("the certificate's scope is not one that this version knows") from None


def ranges(text: str) -> Ranges:
    """Of `1000-1999,2500`. Raises IdentityError."""
    parts = [_RANGE.fullmatch(part) for part in text.split(",")]
    found = tuple((int(part[1]), int(part[2] or part[1])) for part in parts if part)
    if len(found) < len(parts) or any(not 0 < first <= last <= MAX_ID for first, last in found):
        raise IdentityError(f"{text[:60]!r} is not like 1000-1999,2500, with numbers from 1 to {MAX_ID}")
    return found


def _is_in(number: int, within: Ranges) -> bool:
    return any(first <= number <= last for first, last in within)


def _text(within: Ranges) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in within)
