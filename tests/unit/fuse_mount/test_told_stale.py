"""Opens of a name that others remove and make again: the kernel is told that it is stale, and repeats them once."""

import errno
from types import SimpleNamespace

import pytest

from speedwell.fs.errors import NoSuchFile
from speedwell.fs.proto.speedwell_pb2 import REGULAR, Attributes
from speedwell.fuse_mount import shared
from speedwell.fuse_mount.door import ROOT_INODE, Caller
from speedwell.fuse_mount.operations import SpeedwellOperations
from speedwell.fuse_mount.shared import ONE_CALL_SECONDS

CACHE_SECONDS = 30.0


class Names:
    """A client that knows one name."""

    def __init__(self) -> None:
        self.inode = 10
        self.metadata = SimpleNamespace(
            cache=SimpleNamespace(seconds=CACHE_SECONDS, seconds_left=lambda path: CACHE_SECONDS,
                                  get=lambda path: None),
            requests=SimpleNamespace(ask=None))

    def lookup(self, path: bytes, fresh: bool = False) -> Attributes:
        if not self.inode:
            raise NoSuchFile("it is removed")
        return Attributes(inode=self.inode, type=REGULAR)


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
def mount(names: Names, monkeypatch: pytest.MonkeyPatch) -> SpeedwellOperations:
    """One whose kernel knew inode 10, and was told that it is stale: the name was just removed."""
    monkeypatch.setattr(shared, "RETRY_SECONDS", 3600.0)
    kernel = SimpleNamespace(caller=lambda: Caller(0, 0, 77, 0))
    mount = SpeedwellOperations(names, kernel)  # type: ignore[arg-type]
    assert look_up(mount) == CACHE_SECONDS
    names.inode = 0
    assert errno_of_open(mount, 10) == errno.ESTALE
    return mount


def look_up(mount: SpeedwellOperations) -> float:
    """For how long the kernel may keep the name."""
    return mount.lookup(ROOT_INODE, b"lock").seconds


def errno_of_open(mount: SpeedwellOperations, inode: int) -> int | None:
    with pytest.raises(OSError) as caught:
        mount._by_name(inode)
    return caught.value.errno


def test_what_the_second_look_up_finds_is_opened_though_it_is_removed_again(mount: SpeedwellOperations,
                                                                           names: Names) -> None:
    with pytest.raises(NoSuchFile):
        look_up(mount)
    names.inode = 11
    assert look_up(mount) <= ONE_CALL_SECONDS
    names.inode = 0
    assert mount._by_name(11).inode == 11
    assert errno_of_open(mount, 11) == errno.ESTALE


def test_who_was_told_that_there_is_nothing_opens_what_has_the_name_then(mount: SpeedwellOperations,
                                                                        names: Names) -> None:
    for _ in range(2):
        with pytest.raises(NoSuchFile):
            look_up(mount)
    names.inode = 11
    assert look_up(mount) <= ONE_CALL_SECONDS
    names.inode = 12
    assert errno_of_open(mount, 11) == errno.ESTALE


def test_what_was_found_before_the_name_was_gone_is_not_opened(mount: SpeedwellOperations, names: Names) -> None:
    names.inode = 11
    look_up(mount)
    names.inode = 0
    with pytest.raises(NoSuchFile):
        look_up(mount)
    assert errno_of_open(mount, 11) == errno.ESTALE


def test_who_was_told_long_ago_may_keep_names(mount: SpeedwellOperations, names: Names,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSuchFile):
        look_up(mount)
    monkeypatch.setattr(shared, "RETRY_SECONDS", 0.0)
    names.inode = 11
    assert look_up(mount) == CACHE_SECONDS
