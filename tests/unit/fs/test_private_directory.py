"""Directories with keys: whom they are taken from, and what stays as it is where a command is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.errors import IdentityError, StorageFailed
from speedwell.fs.identity.authority import Authority
from speedwell.fs.nameserver.backup.namespace_directory import NameserverDirectory


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def open_to_others(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    return path


def use_as_dataserver(path: Path, name: str = "d0") -> None:
    FileStore(path, name).close()


def use_as_nameserver(path: Path) -> None:
    NameserverDirectory(path, sync=False).close()


@pytest.mark.parametrize("use", [use_as_dataserver, use_as_nameserver])
def test_directories_of_an_earlier_version_are_taken_from_others(tmp_path: Path, use) -> None:
    use(directory := open_to_others(tmp_path / "data"))
    assert mode(directory) == 0o700


@pytest.mark.parametrize("use", [use_as_dataserver, use_as_nameserver])
def test_a_directory_of_another_user_is_used_and_the_log_says_so(
        tmp_path: Path, use, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    directory = open_to_others(tmp_path / "data")

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    use(directory)
    assert f"{directory} is open to others, who may read the keys in it: chmod 700 it" in caplog.text


def test_a_directory_of_another_dataserver_stays_as_it_is(tmp_path: Path) -> None:
    use_as_dataserver(tmp_path / "data")
    directory = open_to_others(tmp_path / "data")
    with pytest.raises(StorageFailed, match="belongs to the dataserver 'd0'"):
        use_as_dataserver(directory, "d1")
    assert mode(directory) == 0o755


def test_no_authority_is_made_among_other_things(tmp_path: Path) -> None:
    directory = open_to_others(tmp_path / "shared")
    (directory / "letter").write_text("")
    with pytest.raises(IdentityError, match="no certificate authority, but other things: name a new directory"):
        Authority.make(directory)
    assert mode(directory) == 0o755 and [path.name for path in directory.iterdir()] == ["letter"]


def test_an_authority_that_was_begun_is_made(tmp_path: Path) -> None:
    directory = open_to_others(tmp_path / "identity")
    for left in ("lock", "authority.key", ".authority.pem.123"):
        (directory / left).write_text("")
    Authority.make(directory).issue("d0", "dataserver")
    assert mode(directory) == 0o700
