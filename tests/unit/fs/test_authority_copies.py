"""Another machine goes on as the authority, from a copy of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.errors import IdentityError
from speedwell.fs.identity import copies, files, joining
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import AUTHORITY, DATASERVER, NAMESERVER
from tests.unit.fs.test_joining import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With the machine b, and a copy made when it had joined."""
    site = Site(tmp_path / "authority")
    joining.join(tmp_path / "b", site.invite("b", NAMESERVER, settings={
        "nameserver": "127.0.0.1:7400,10.0.0.2:7400"}))
    copies.write(site.directory, tmp_path / "copy")
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_a_copy_is_for_its_owner_alone(site: Site, tmp_path: Path) -> None:
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0


def test_a_machine_with_a_copy_is_the_authority_and_keeps_its_own_certificates_renewed(
        site: Site, tmp_path: Path) -> None:
    site.authority.issue("d", DATASERVER)
    before = Identity(tmp_path / "b/nameserver-b").own.serial
    authority = copies.read(tmp_path / "copy", tmp_path / "b")
    newest = authority.newest()
    assert newest["nameserver-b"].serial == before and not newest["nameserver-b"].elsewhere
    assert newest[AUTHORITY].elsewhere, "its key is on the machine that was lost"
    assert authority.renew() == ["nameserver-b"]
    assert authority.issue("e", DATASERVER).is_dir()


def test_an_authority_learns_what_it_issued_after_the_copy_and_may_revoke_it(site: Site, tmp_path: Path) -> None:
    joining.join(tmp_path / "c", site.invite("c", DATASERVER))
    shown = Identity(tmp_path / "c/c").own.serial
    place = site.directory / "issued.json"
    place.write_text(json.loads((tmp_path / "copy").read_text())["issued.json"])
    assert "c" not in site.authority.newest()
    joining.hear(tmp_path / "c")
    learned = site.authority.newest()["c"]
    assert (learned.serial, learned.role, learned.elsewhere) == (shown, DATASERVER, True)
    assert not learned.is_due(learned.issued_at + 1)
    site.authority.revoke("c")
    joining.hear(tmp_path / "b")
    assert shown in files.read_json(tmp_path / "b/nameserver-b" / files.REVOKED)


def test_a_machine_that_joined_finds_the_authority_where_the_names_are_kept(site: Site, tmp_path: Path) -> None:
    joined = tmp_path / "b" / joining.JOINED
    assert json.loads(joined.read_text()) == {"authority": site.address,
                                             "others": [f"10.0.0.2:{site.server.server_port}"]}
    joined.write_text(json.dumps({"authority": "127.0.0.1:1", "others": [site.address]}))
    joining.hear(tmp_path / "b")
    assert json.loads(joined.read_text()) == {"authority": site.address, "others": ["127.0.0.1:1"]}
    joined.write_text(json.dumps({"authority": "127.0.0.1:1", "others": ["127.0.0.1:2"]}))
    with pytest.raises(IdentityError, match=r"127\.0\.0\.1:1 does not answer.*; .*127\.0\.0\.1:2 does not answer"):
        joining.hear(tmp_path / "b")


@pytest.mark.parametrize("damage", [
    lambda copy: "{", lambda copy: "{}", lambda copy: json.dumps({**copy, "../x": ""}),
    lambda copy: json.dumps({**copy, "authority.key": "no key"}),
    lambda copy: json.dumps({**copy, "issued.json": "{}"}), lambda copy: json.dumps({**copy, "tokens.json": 7})])
def test_what_is_no_whole_copy_changes_nothing(site: Site, tmp_path: Path, damage: object) -> None:
    copy = tmp_path / "copy"
    assert callable(damage)
    copy.write_text(damage(json.loads(copy.read_text())))
    refused(tmp_path, "damaged|no whole copy")


def test_a_copy_of_another_installation_changes_nothing(site: Site, tmp_path: Path) -> None:
    copies.write(Authority.make(tmp_path / "other").directory, tmp_path / "copy")
    refused(tmp_path, "no whole copy")      # it has issued nothing
    other = Authority(tmp_path / "other")
    other.issue("x", DATASERVER)
    copies.write(other.directory, tmp_path / "copy")
    refused(tmp_path, "of another installation")


def refused(tmp_path: Path, why: str) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    with pytest.raises(IdentityError, match=why):
        copies.read(tmp_path / "copy", tmp_path / "b")
    assert {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()} == before
