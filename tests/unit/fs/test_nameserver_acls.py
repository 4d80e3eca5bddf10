"""Access control lists in the namespace: which are taken, what mode they make, and who inherits them."""

import struct

import pytest

from speedwell.fs.errors import InvalidArgument
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace.acls import GROUP, MASK, OTHER, OWNER, OWNING_GROUP, USER
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.store import MemoryStore

BASE = [(OWNER, 7), (OWNING_GROUP, 5), (OTHER, 4)]
NAMED = [(OWNER, 7), (USER, 6, 1000), (OWNING_GROUP, 5), (GROUP, 4, 50), (MASK, 6), (OTHER, 0)]


def acl(entries: list[tuple[int, ...]], version: int = 2) -> bytes:
    return struct.pack("<I", version) + b"".join(
        struct.pack("<HHI", *(entry if len(entry) == 3 else (*entry, 0xFFFFFFFF))) for entry in entries)


class Names:
    def __init__(self) -> None:
        self.namespace = Namespace(MemoryStore(), now_ns=0, deletion_grace_ns=0)
        self.namespace.make_directory(b"/d", mode=0o755, uid=1, gid=2, now_ns=1)

    def set(self, path: bytes, name: bytes, value: bytes, *, clear_setgid: bool = False) -> Inode:
        return self.namespace.extended_attributes.set(path, name, value, now_ns=2, clear_setgid=clear_setgid)

    def create(self, path: bytes, mode: int, umask: int) -> Inode:
        content = Content(path.ljust(16, b"."), 1 << 20, 1, (5,))
        return self.namespace.create(path, mode=mode, uid=1, gid=2, exclusive=True, new_content=lambda: content,
                                     now_ns=3, umask=umask)[0]

    def chmod(self, path: bytes, mode: int) -> Inode:
        return self.namespace.set_attributes(path, mode=mode, uid=None, gid=None, atime_ns=None, mtime_ns=None,
                                             now_ns=3)

    def mkdir(self, path: bytes, mode: int, umask: int) -> Inode:
        return self.namespace.make_directory(path, mode=mode, uid=1, gid=2, now_ns=3, umask=umask)


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.mark.parametrize("bad", [
    b"", b"\2\0\0", acl(BASE, 1), acl(BASE)[:-1], acl([]), acl(BASE[:2]), acl([*BASE, (OTHER, 1)]), acl(BASE[::-1]),
    acl([*BASE[:1], (USER, 7, 5), *BASE[1:]]), acl([*BASE[:2], (MASK, 8), *BASE[2:]]), acl([*BASE, (64, 1)]),
    acl([*BASE[:1], *[(USER, 7, number) for number in range(600)], BASE[1], (MASK, 7), BASE[2]])])
def test_what_is_no_list_is_refused_and_changes_nothing(names: Names, bad: bytes) -> None:
    before = names.namespace.tree.lookup(b"/d")
    for name in acls.NAMES:
        with pytest.raises(InvalidArgument):
            names.set(b"/d", name, bad)
    assert names.namespace.tree.lookup(b"/d") == before
    assert not names.namespace.extended_attributes.has_acls


def test_a_list_changes_the_mode_and_the_mode_the_list(names: Names) -> None:
    assert names.set(b"/d", acls.ACCESS, acl(NAMED)).mode == 0o760
    assert names.chmod(b"/d", 0o1710).mode == 0o1710
    expected = [(OWNER, 7), (USER, 6, 1000), (OWNING_GROUP, 5), (GROUP, 4, 50), (MASK, 1), (OTHER, 0)]
    assert names.namespace.tree.lookup(b"/d").extended_attributes == {acls.ACCESS: acl(expected)}
    assert names.set(b"/d", acls.ACCESS, acl(BASE)).mode == 0o1754
    assert names.namespace.tree.lookup(b"/d").extended_attributes == {}
    assert names.namespace.extended_attributes.has_acls


def test_the_setgid_bit_goes_if_the_caller_is_not_in_the_group(names: Names) -> None:
    names.chmod(b"/d", 0o2755)
    assert names.set(b"/d", acls.ACCESS, acl(NAMED)).mode == 0o2760
    assert names.set(b"/d", acls.ACCESS, acl(NAMED), clear_setgid=True).mode == 0o760


def test_what_is_made_inherits_the_default_list_in_place_of_the_umask(names: Names) -> None:
    assert names.create(b"/d/before", 0o666, 0o27).mode == 0o640
    names.set(b"/d", acls.DEFAULT, acl(NAMED))
    file = names.create(b"/d/f", 0o664, 0o77)
    assert file.mode == 0o660
    assert file.extended_attributes == {acls.ACCESS: acl(
        [(OWNER, 6), (USER, 6, 1000), (OWNING_GROUP, 5), (GROUP, 4, 50), (MASK, 6), (OTHER, 0)])}
    directory = names.mkdir(b"/d/d", 0o2750, 0)
    assert directory.mode == 0o2740
    assert directory.extended_attributes[acls.DEFAULT] == acl(NAMED)
    assert names.create(b"/d/d/f", 0o600, 0).mode == 0o600
    link = names.namespace.make_symbolic_link(b"/d/link", b"f", uid=1, gid=2, now_ns=3)
    assert (link.mode, link.extended_attributes) == (0o777, {})


def test_a_default_list_that_says_no_more_than_a_mode_makes_modes(names: Names) -> None:
    names.set(b"/d", acls.DEFAULT, acl(BASE))
    file = names.create(b"/d/f", 0o666, 0o77)
    assert (file.mode, file.extended_attributes) == (0o644, {})
    assert names.mkdir(b"/d/d", 0o777, 0o77).extended_attributes == {acls.DEFAULT: acl(BASE)}


def test_only_directories_have_default_lists_and_links_have_none(names: Names) -> None:
    names.create(b"/d/f", 0o644, 0)
    names.namespace.make_symbolic_link(b"/d/link", b"f", uid=1, gid=2, now_ns=3)
    for path, name in ((b"/d/f", acls.DEFAULT), (b"/d/link", acls.ACCESS)):
        with pytest.raises(InvalidArgument, match="goes with"):
            names.set(path, name, acl(BASE))
