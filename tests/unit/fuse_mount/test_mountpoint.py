from pathlib import Path

import pytest

from speedwell.fs.mount_table import Mount, mounts
from speedwell.fuse_mount.errors import MountError
from speedwell.fuse_mount.mountpoint import prepare

TABLE = rb"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
41 22 0:41 / /mnt/with\040space\011and\134more rw,nosuid - fuse.speedwell speedwell@127.0.0.1:7000 rw,user_id=1000
42 22 0:42 / /mnt/shared rw master:1 - tmpfs a\043b\134040 rw
"""


def test_the_mount_table_is_read_with_escaped_and_optional_fields(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(TABLE)
    assert list(mounts(table)) == [
        Mount(Path("/"), "ext4", "/dev/vda", ("rw", "relatime", "rw"), "254:0"),
        Mount(Path("/mnt/with space\tand\\more"), "fuse.speedwell", "speedwell@127.0.0.1:7000",
              ("rw", "nosuid", "rw", "user_id=1000"), "0:41"),
        Mount(Path("/mnt/shared"), "tmpfs", r"a#b\040", ("rw", "rw"), "0:42"),
    ]
    assert [mount.owner for mount in mounts(table)] == [0, 1000, 0]


def test_an_empty_directory_is_fit_and_comes_back_without_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert prepare(tmp_path / "link") == (tmp_path / "real").resolve()


@pytest.mark.parametrize(("name", "message"), [("missing", "does not exist"), ("file", "not a directory"),
                                               ("full", "not empty"), ("no/such", "No such file")])
def test_anything_else_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "entry").touch()
    with pytest.raises(MountError, match=message):
        prepare(tmp_path / name)
