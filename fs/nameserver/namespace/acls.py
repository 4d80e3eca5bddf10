"""POSIX access control lists (acl(5)), in the form in which Linux hands them over as extended attributes
(linux/posix_acl_xattr.h). Whom they let in the kernels of the mounts check, and for some `service.access`."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from speedwell.fs.errors import InvalidArgument

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
NAMES = (ACCESS, DEFAULT)
OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
ONCE = (OWNER, OWNING_GROUP, OTHER)
MAX_ENTRIES = 511
"""With its header such a list fits a page, more than which Linux does not ask FUSE for."""

_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")


class Entry(NamedTuple):
    """`permissions` are 3 bits, `number` is that of a USER or GROUP."""

    tag: int
    permissions: int
    number: int


def decode(value: bytes) -> list[Entry]:
    """Raises InvalidArgument for what Linux would refuse, too."""
    body = value[_VERSION.size:]
    if len(value) < _VERSION.size or _VERSION.unpack_from(value)[0] != 2 or len(body) % _ENTRY.size:
        raise InvalidArgument("extended_attribute.value: it is not an access control list of version 2")
    entries = list(map(Entry._make, _ENTRY.iter_unpack(body)))
    tags = [entry.tag for entry in entries]
    if tags != sorted(tags) or not set(tags) <= {OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHER} or len(
            tags) > MAX_ENTRIES or any(entry.permissions > 7 for entry in entries):
        raise InvalidArgument("extended_attribute.value: entries are out of order, too many, or none that there are")
    if any(tags.count(tag) != 1 for tag in ONCE) or tags.count(MASK) > 1 or (
            MASK not in tags and len(tags) > len(ONCE)):
        raise InvalidArgument("extended_attribute.value: an access control list has one entry each for owner, "
                              "owning group and others, and a mask if there are more")
    return entries


def mode_of(entries: Sequence[Entry]) -> int:
    """The nine permission bits that show a list: the mask, if there is one, stands for the group."""
    bits = {entry.tag: entry.permissions for entry in entries}
    return bits[OWNER] << 6 | bits.get(MASK, bits[OWNING_GROUP]) << 3 | bits[OTHER]


def is_extended(entries: Sequence[Entry]) -> bool:
    """Whether it says more than a mode."""
    return len(entries) > len(ONCE)


def changed(value: bytes, mode: int) -> bytes:
    """An access list after chmod(2)."""
    return _encode(_combined(decode(value), mode, keeps=False))


def inherited(default: bytes, mode: int) -> tuple[int, bytes | None]:
    """The mode, and the access list if it says more, of what is made with `mode` in a directory with that default
    list."""
    entries = _combined(decode(default), mode, keeps=True)
    return mode & ~0o777 | mode_of(entries), _encode(entries) if is_extended(entries) else None


def _combined(entries: list[Entry], mode: int, *, keeps: bool) -> list[Entry]:
    """With the bits of `mode`, or if it `keeps` to what there is, those that both have."""
    shifts = {OWNER: 6, MASK if is_extended(entries) else OWNING_GROUP: 3, OTHER: 0}
    return [entry._replace(permissions=mode >> shifts[entry.tag] & (entry.permissions if keeps else 7))
            if entry.tag in shifts else entry for entry in entries]


def _encode(entries: list[Entry]) -> bytes:
    return _VERSION.pack(2) + b"".join(_ENTRY.pack(*entry) for entry in entries)
