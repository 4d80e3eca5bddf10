"""What a client remembers about files, and for how long."""

import pytest

from speedwell.fs import paths
from speedwell.fs.client.names.attribute_cache import MAX_CHANGED, AttributeCache
from speedwell.fs.client.names.look_ahead import FIRST_PAGE, LARGEST_PAGE, PROVEN_SHARE, LookAhead
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, Attributes


def file(inode: int, **fields: int) -> Attributes:
    return Attributes(inode=inode, type=REGULAR, **fields)  # type: ignore[arg-type]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def filled(*paths: bytes, seconds: float = 1.0, capacity: int = 100, clock: Clock | None = None) -> AttributeCache:
    cache = AttributeCache(seconds, capacity, clock or Clock())
    for inode, path in enumerate(paths, start=2):
        put(cache, path, file(inode))
    return cache


def put(cache: AttributeCache, path: bytes, attributes: Attributes) -> None:
    directory = path.rpartition(b"/")[0] or b"/"
    cache.fill(directory, cache.moment(), [(path, attributes)])


def test_an_entry_is_served_until_it_expires() -> None:
    clock = Clock()
    cache = filled(b"/d/f", clock=clock)
    clock.now = 0.99
    assert cache.get(b"/d/f") == file(2)
    clock.now = 1.0
    assert cache.get(b"/d/f") is None
    assert len(cache) == 0


def test_the_least_recently_used_entry_leaves_first() -> None:
    cache = filled(b"/a", b"/b", b"/c", capacity=3)
    cache.get(b"/a")
    put(cache, b"/d", file(9))
    assert [path for path in (b"/a", b"/b", b"/c", b"/d") if cache.get(path)] == [b"/a", b"/c", b"/d"]


def test_an_own_change_is_seen_at_once() -> None:
    cache = filled(b"/d/f", b"/d/g")
    cache.changed(b"/d/f")
    cache.changed(b"/d/g", file(3, size=7))
    assert cache.get(b"/d/f") is None
    assert cache.get(b"/d/g") == file(3, size=7)


def test_an_answer_that_was_on_its_way_during_a_change_is_not_stored() -> None:
    cache = filled()
    moment, elsewhere = cache.moment(), cache.moment()
    cache.changed(b"/d/f")
    cache.fill(b"/d", moment, [(b"/d/f", file(2)), (b"/d/g", file(3))])
    cache.fill(b"/e", elsewhere, [(b"/e/f", file(4))])
    assert cache.get(b"/d/f") is None
    assert cache.get(b"/d/g") is None
    assert cache.get(b"/e/f") == file(4)


def test_a_moved_directory_takes_all_below_it_out_of_the_cache() -> None:
    cache = filled(b"/d", b"/d/f", b"/d/s/g", b"/dd", b"/e/f")
    moment = cache.moment()
    cache.changed_tree(b"/d")
    cache.fill(b"/d/s", moment, [(b"/d/s/late", file(50))])
    assert [path for path in (b"/d", b"/d/f", b"/d/s/g", b"/d/s/late", b"/dd", b"/e/f")
            if cache.get(path)] == [b"/dd", b"/e/f"]


def test_a_commit_changes_the_file_under_all_its_names_and_renews_none_of_them() -> None:
    clock = Clock()
    cache = filled(b"/d/f", clock=clock)
    put(cache, b"/d/g", file(2))
    clock.now = 0.5
    cache.changed_inode(file(2, size=5))
    clock.now = 0.9
    assert cache.get(b"/d/f") == cache.get(b"/d/g") == file(2, size=5)
    clock.now = 1.0
    assert cache.get(b"/d/f") is None


def test_a_file_is_known_by_its_inode_and_for_as_long_as_it_may_be_told() -> None:
    clock = Clock()
    cache = filled(b"/d/f", clock=clock)
    clock.now = 0.5
    cache.changed_inode(file(2, size=5))
    clock.now = 0.75
    assert cache.seconds_left(b"/d/f") == 0.25
    assert cache.seconds_left(paths.of_inode(2)) == 0.75
    assert cache.seconds_left(b"/d/other") == 0
    clock.now = 1.4
    assert cache.get(paths.of_inode(2)) == file(2, size=5)


@pytest.mark.parametrize(("seconds", "capacity"), [(0.0, 100), (1.0, 0)])
def test_without_time_or_room_nothing_is_kept(seconds: float, capacity: int) -> None:
    clock = Clock()
    clock.now = 5.0
    cache = filled(b"/d/f", seconds=seconds, capacity=capacity, clock=clock)
    cache.made(b"/d/g", file(3))
    cache.changed_inode(file(2))
    assert not len(cache)
    assert cache.get(b"/d/f") is cache.get(b"/d/g") is cache.get(paths.of_inode(2)) is None
    assert cache.moment().until <= clock.now


def test_a_doubtful_change_takes_the_directory_above_out_too() -> None:
    cache = filled(b"/d", b"/d/f", b"/d/g")
    cache.gone(b"/d/f")
    assert [path for path in (b"/d", b"/d/f", b"/d/g") if cache.get(path)] == [b"/d/g"]


def test_a_file_that_lost_one_of_two_names_is_known_with_its_new_attributes() -> None:
    cache = filled(b"/d/f", b"/d/g")
    cache.lost_name(file(2, link_count=1))
    cache.lost_name(file(3, link_count=0))
    assert cache.get(b"/d/f") == file(2, link_count=1)
    assert cache.get(b"/d/g") is None


def test_a_commit_of_a_file_not_cached_keeps_older_answers_out() -> None:
    cache = filled()
    moment = cache.moment()
    cache.changed_inode(file(2, size=5))
    cache.fill(b"/d", moment, [(b"/d/f", file(2))])
    assert cache.get(b"/d/f") is None


def test_a_new_entry_renews_its_directory() -> None:
    cache = filled()
    before = Attributes(inode=5, type=DIRECTORY, mtime_ns=1, ctime_ns=1, link_count=2)
    put(cache, b"/d", before)
    cache.made(b"/d/s", file(6, ctime_ns=9), is_directory=True)
    cache.made(b"/unknown/f", file(7, ctime_ns=9))
    renewed = cache.get(b"/d")
    assert renewed is not None
    assert (renewed.mtime_ns, renewed.ctime_ns, renewed.link_count) == (9, 9, 3)
    assert (before.mtime_ns, before.link_count) == (1, 2)  # what callers hold does not change


def test_changes_in_many_directories_are_remembered_in_bounded_space() -> None:
    cache = filled(b"/keep")
    moment = cache.moment()
    for number in range(MAX_CHANGED * 2):
        cache.changed(b"/d%d/f" % number)
    assert len(cache._changed) <= MAX_CHANGED
    cache.fill(b"/d0", moment, [(b"/d0/f", file(2))])
    assert cache.get(b"/d0/f") is None
    assert cache.get(b"/keep") is not None


# ------------------------------------------------------------------ look-ahead


def walk(ahead: LookAhead, directory: bytes, names: list[bytes]) -> list[int]:
    return [ahead.missed(directory, name) for name in names]


def test_the_third_look_up_in_a_directory_lists_on_from_there() -> None:
    assert walk(LookAhead(), b"/d", [b"a", b"b", b"c"]) == [0, 0, FIRST_PAGE]


def test_look_ups_in_different_directories_are_no_walk() -> None:
    ahead = LookAhead()
    assert not any(ahead.missed(b"/d%d" % number, b"a") for number in range(50))


def test_look_ups_in_another_order_are_no_walk() -> None:
    assert not any(walk(LookAhead(), b"/d", [b"%03d" % number for number in range(100, 0, -1)]))


def test_pages_grow_while_they_are_used() -> None:
    ahead = LookAhead()
    walk(ahead, b"/d", [b"a", b"b", b"c"])
    sizes = []
    for number in range(6):
        ahead.hits += LARGEST_PAGE // PROVEN_SHARE
        sizes.append(ahead.missed(b"/d", b"d%d" % number))
    assert sizes == [128, 256, 512, 1000, 1000, 1000]


def test_a_listing_that_spared_nothing_makes_the_next_one_come_later() -> None:
    ahead = LookAhead()
    waits = []
    misses = 0
    for number in range(400):
        misses += 1
        if ahead.missed(b"/d", b"%06d" % number):
            waits.append(misses)
            misses = 0
    assert waits == [3, 12, 48, 192]


def test_the_next_directory_is_looked_at_anew() -> None:
    ahead = LookAhead()
    walk(ahead, b"/d", [b"%06d" % number for number in range(400)])
    assert walk(ahead, b"/e", [b"a", b"b", b"c"]) == [0, 0, FIRST_PAGE]


def test_what_was_changed_since_a_listing_is_known_by_inode_and_by_name() -> None:
    cache = filled(b"/d/a", b"/d/b", seconds=2.0)
    inodes = [cache.get(path).inode for path in (b"/d/a", b"/d/b")]
    moment = cache.moment()
    assert cache.changed_since(moment, [7, *inodes]) == set()
    cache.changed_inode(cache.get(b"/d/b"))
    assert cache.changed_since(moment, [7, *inodes]) == {inodes[1]}
    cache.changed(paths.join(paths.of_inode(7), b"c"))
    assert cache.changed_since(moment, [7, *inodes]) == {7, inodes[1]}
    names = [paths.below(7, name) for name in (b"c", b"d")]
    assert cache.changed_since(moment, names) == {names[0]}
    cache.clear()
    assert cache.changed_since(moment, [7, *inodes]) == {7, *inodes}
    assert cache.changed_since(cache.moment(), [7, *inodes]) == set()
