"""What one of several users may: the nameserver's answer against the kernel's, for the same modes and lists."""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace.acls import GROUP, MASK, OTHER, OWNER, OWNING_GROUP, USER, Entry
from speedwell.fs.nameserver.service.access import may

IDS = (2001, 2002, 2003)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")

permissions = st.integers(0, 7)
numbers = st.sampled_from(IDS)
some = st.sets(numbers, max_size=2)


@contextmanager
def acting_as(uid: int, groups: Sequence[int]) -> Iterator[None]:
    os.setgroups(groups)
    os.setresgid(2999, 2999, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([])


def encoded(entries: Sequence[Entry]) -> bytes:
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry._replace(number=entry.number or 2**32 - 1)) for entry in entries)


@settings(max_examples=150, deadline=None)
@given(mode=st.integers(0, 0o777), owner=numbers, group=numbers, wanted=st.integers(1, 7),
       users=st.sets(numbers, min_size=1), groups=some, named=st.none() | st.tuples(some, some),
       bits=st.lists(permissions, min_size=8, max_size=8))
def test_one_of_the_users_may_what_the_kernel_lets_one_of_them(
        tmp_path_factory: pytest.TempPathFactory, mode: int, owner: int, group: int, wanted: int, users: set[int],
        groups: set[int], named: tuple[set[int], set[int]] | None, bits: list[int]) -> None:
    directory = tmp_path_factory.mktemp("access")
    directory.chmod(0o755)
    file = directory / "f"
    file.touch()
    os.chown(file, owner, group)
    file.chmod(mode)
    acl: list[Entry] = []
    if named is not None:
        left = iter(bits)
        acl = [Entry(OWNER, next(left), 0), *(Entry(USER, next(left), uid) for uid in sorted(named[0])),
               Entry(OWNING_GROUP, next(left), 0), *(Entry(GROUP, next(left), gid) for gid in sorted(named[1])),
               Entry(MASK, next(left), 0), Entry(OTHER, next(left), 0)]
        os.setxattr(file, acls.ACCESS, encoded(acl))
        mode = file.stat().st_mode & 0o777
    expected = any(_kernel_lets(file, wanted, uid, chosen) for uid in users
                   for chosen in chain.from_iterable(combinations(groups, count) for count in range(len(groups) + 1)))
    scope = Scope(tuple((uid, uid) for uid in users), tuple((gid, gid) for gid in groups))
    assert may(mode, acl, owner, group, scope, wanted) == expected


def _kernel_lets(file: Path, wanted: int, uid: int, groups: Sequence[int]) -> bool:
    directory = os.open(file.parent, os.O_PATH)
    try:
        with acting_as(uid, groups):
            return os.access(file.name, wanted, dir_fd=directory)
    finally:
        os.close(directory)
