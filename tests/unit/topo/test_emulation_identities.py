"""The certificates of an emulation come and go, and nobody else's."""

from pathlib import Path

import pytest

from speedwell.fs.identity import files, places
from speedwell.fs.identity.authority import Authority
from speedwell.topo.emulation import EmulationError, identities


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.STATE_VARIABLE, str(tmp_path / "state"))


def test_those_of_an_emulation_that_was_killed_are_used_again_and_none_remains(tmp_path: Path) -> None:
    for _ in range(2):
        assert (identities.make(tmp_path) / files.AUTHORITY).exists()
    identities.remove(tmp_path)
    assert not (tmp_path / identities.FOLDER).exists()


def test_an_installations_authority_is_neither_used_nor_removed(tmp_path: Path) -> None:
    place = Authority.make(tmp_path / identities.FOLDER).directory
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(EmulationError, match="is not an emulation's"):
        identities.make(tmp_path)
    identities.remove(tmp_path)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
