from fuse_mount.kernel_cache import AttributesTold, PageVersions


def test_pages_are_kept_only_for_the_content_read_last() -> None:
    versions = PageVersions()
    assert not versions.reading(b"/a", "one")
    assert versions.reading(b"/a", "one")
    assert not versions.reading(b"/a", "two")
    assert not versions.reading(b"/a", "one")


def test_forgotten_paths_are_read_anew() -> None:
    versions = PageVersions()
    versions.reading(b"/a", "one")
    versions.reading(b"/b", "two")
    versions.forget(b"/a", b"/unknown")
    assert not versions.reading(b"/a", "one")
    assert versions.reading(b"/b", "two")


def test_versions_are_bounded() -> None:
    versions = PageVersions(limit=2)
    for name in (b"/a", b"/b", b"/c"):
        versions.reading(name, "id")
    assert not versions.reading(b"/a", "id")


def test_attributes_are_current_only_as_told_last() -> None:
    told = AttributesTold()
    assert not told.is_current(7, 100, 5)
    told.tell(7, 100, 5)
    assert told.is_current(7, 100, 5)
    assert not told.is_current(7, 101, 5)
    assert not told.is_current(7, 100, 6)
    assert not told.is_current(8, 100, 5)


def test_an_inode_that_had_to_be_forgotten_counts_as_out_of_date() -> None:
    told = AttributesTold(limit=2)
    for inode in (1, 2, 3):
        told.tell(inode, 0, 0)
    assert not told.is_current(1, 0, 0)
    assert told.is_current(3, 0, 0)


def test_what_the_kernel_dropped_by_itself_is_not_told_any_more() -> None:
    told = AttributesTold()
    told.tell(7, 100, 5)
    assert told.is_told(7)
    told.forget(7)
    told.forget(8)
    assert not told.is_told(7)
    assert not told.is_current(7, 100, 5)
