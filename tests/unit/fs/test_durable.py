"""A file is replaced whole, or stays as it was."""

import os
import stat
from pathlib import Path

import pytest

from speedwell.fs import durable


def test_a_file_that_is_written_piece_by_piece_gets_its_content_and_name_on_the_disk_at_the_end(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    with durable.replacing(path, 0o600) as stream:
        stream.write(b"new ")
        assert path.read_bytes() == b"old"
        stream.write(b"content")
    assert path.read_bytes() == b"new content" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert synced == [f".file.{os.getpid()}", tmp_path.name], "the content before the name"


def test_a_file_whose_writing_fails_stays_as_it_was_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), durable.replacing(path) as stream:
        stream.write(b"new")
        raise KeyboardInterrupt
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


def test_an_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr(durable, "_beside", lambda path: full)
    monkeypatch.setattr(durable, "_remove", lambda _: None)     # not /dev/full
    with pytest.raises(OSError, match=r"No space left.*important"):
        durable.replace(tmp_path / "important", b"content")
