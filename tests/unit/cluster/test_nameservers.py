"""Which processes several nameservers need."""

from pathlib import Path

import pytest

from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.local_commands import has_certificates
from speedwell.cluster.nameservers import (
    ETCD_READY,
    EtcdMember,
    etcd_commands,
    etcd_names,
    free_ports,
    nameserver_commands,
    nameserver_names,
    require_etcd,
)

MEMBERS = [EtcdMember(1000 + number, 2000 + number) for number in range(3)]


@pytest.mark.parametrize(("nameservers", "members"), [(1, 0), (2, 1), (3, 3), (4, 3), (5, 5), (7, 7)])
def test_an_etcd_has_an_odd_number_of_members_and_one_nameserver_needs_none(nameservers: int, members: int) -> None:
    assert len(etcd_names(nameservers)) == members
    assert len(set(nameserver_names(nameservers))) == nameservers


def test_members_of_an_etcd_know_each_other_and_keep_apart() -> None:
    commands = etcd_commands(Path("/c"), "127.0.0.1", MEMBERS)
    assert [command.name for command in commands] == etcd_names(3)
    options = [dict(word.removeprefix("--").split("=", 1) for word in command.argv[1:]) for command in commands]
    assert {each["initial-cluster"] for each in options} == {
        "etcd-0=http://127.0.0.1:2000,etcd-1=http://127.0.0.1:2001,etcd-2=http://127.0.0.1:2002"}
    assert len({each["data-dir"] for each in options}) == 3


def test_every_nameserver_is_told_all_members() -> None:
    commands = nameserver_commands(Path("/c"), ["h:1", "h:2", "h:3"], ["--replication", "2"], "h", MEMBERS)
    assert [command.name for command in commands] == nameserver_names(3)
    for command in commands:
        assert command.argv[-2:] == ["--etcd", "h:1000,h:1001,h:1002"]
        assert str(Path("/c") / command.name) in command.argv
    alone, = nameserver_commands(Path("/c"), ["h:1"], [], "h", [])
    assert "--etcd" not in alone.argv and alone.name == "nameserver"


def test_an_etcd_that_was_made_with_tls_keeps_it_whatever_its_nameservers_do() -> None:
    members = [EtcdMember(*member) for member in ((1000, 2000, 3000), (1001, 2001, 3001), (1002, 2002, 3002))]
    for command in etcd_commands(Path("/c"), "127.0.0.1", members):
        assert "--peer-client-cert-auth=true" in command.argv and "--client-cert-auth=true" in command.argv
        assert f"--cert-file=/c/identity/{command.name}/identity.pem" in command.argv
        assert not [word for word in command.argv if "http://" in word and "metrics" not in word]
    for command in nameserver_commands(Path("/c"), ["h:1", "h:2", "h:3"], [], "h", members):
        assert command.argv[command.argv.index("--etcd-identity") + 1] == f"/c/identity/{command.name}"
    settings = {"nameservers": 3, "identity": False, "etcd_ports": [[1000, 2000, 3000]]}
    assert has_certificates(settings) and not has_certificates({**settings, "etcd_ports": [[1000, 2000]]})


def test_an_etcd_is_ready_when_it_serves_clients() -> None:
    log = (b'{"level":"info","msg":"serving peer traffic","address":"127.0.0.1:2000"}\n'
           b'{"level":"info","msg":"serving client traffic insecurely; this is strongly discouraged!",'
           b'"address":"127.0.0.1:1000"}\n')
    found = ETCD_READY.search(log)
    assert found is not None and found.group(1) == b"127.0.0.1:1000"
    assert ETCD_READY.search(log.splitlines()[0]) is None


def test_without_etcd_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidSetting, match="etcd-server"):
        require_etcd()


def test_free_ports_are_different() -> None:
    assert len(set(free_ports("127.0.0.1", 20))) == 20
