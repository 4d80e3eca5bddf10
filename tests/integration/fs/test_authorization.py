"""Certificates for some users and a directory: what their holders try beyond that is refused and changes nothing."""

from __future__ import annotations

import json
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from speedwell.fs import paths, tokens
from speedwell.fs.client import Client
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import AppendFailed, NotAuthorised, SpeedwellError
from speedwell.fs.file_status import CAPABILITIES
from speedwell.fs.identity.roles import MOUNT, READER
from speedwell.fs.identity.scope import NOBODY, Scope
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

ANNE, BEN = 1000, 1001
DATA = b"for Anne alone"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, dataservers=1, secure=True,
                      nameserver_arguments=("--audit-log", str(directory / "audit"))) as cluster:
        for name, uids, where, root in (("anne", ANNE, b"/", False), ("ben", BEN, b"/", False),
                                        ("bens-home", BEN, b"/home/ben", False), ("root", BEN, b"/home/ben", True)):
            cluster.authority.issue(name, MOUNT, Scope(((uids, uids),), ((uids, uids),), where, root))
        cluster.authority.issue("bens-reader", READER, Scope(((BEN, BEN),), ((BEN, BEN),)))
        operator = cluster.client()
        operator.mkdir("/home")
        for name, uid in (("anne", ANNE), ("ben", BEN)):
            operator.mkdir(f"/home/{name}", 0o700, uid, uid)
            operator.create(f"/home/{name}/secret", 0o644, uid, uid)
            operator.append(f"/home/{name}/secret", DATA)
        operator.create("/public", 0o644, ANNE, ANNE)
        operator.append("/public", DATA)
        operator.mkdir("/tmp", 0o1777)
        operator.create("/tmp/of-anne", 0o600, ANNE, ANNE)
        yield cluster
        assert "Traceback" not in cluster.nameserver.log.read_text()


@pytest.fixture
def names(cluster: LocalCluster) -> Iterator[Callable[[str], MetadataClient]]:
    made: list[MetadataClient] = []

    def connect(identity: str) -> MetadataClient:
        made.append(MetadataClient(cluster.nameserver.address, 0, identity=cluster.identity(identity)))
        return made[-1]

    yield connect
    for client in made:
        client.close()


Names = Callable[[str], MetadataClient]


def refused(request: Callable[[], object]) -> str:
    with pytest.raises(NotAuthorised) as error:
        request()
    return error.value.message


def tree(cluster: LocalCluster) -> list[tuple[bytes, bytes]]:
    """Everything there is, without tokens."""
    found = []
    names = cluster.client(metadata_cache_seconds=0).metadata
    for directory in ("/", "/home", "/home/anne", "/home/ben", "/tmp"):
        for entry in names.list(directory):
            entry.attributes.token = b""
            found.append((entry.name, entry.attributes.SerializeToString()))
    return found


def test_what_another_user_may_not_is_refused_by_path_and_by_inode(cluster: LocalCluster, names: Names) -> None:
    before = tree(cluster)
    operator, ben = cluster.client().metadata, names("ben")
    secret, home = operator.lookup("/home/anne/secret").inode, operator.lookup("/home/anne").inode
    by_inode = paths.of_inode(secret)
    new = paths.join(paths.of_inode(home), b"new")
    acl = struct.pack("<I", 2)
    attempts: list[Callable[[], object]] = [
        lambda: ben.lookup("/home/anne/secret"), lambda: ben.lookup("/home/anne/missing"),
        lambda: ben.lookup("/home/anne/missing/below"), lambda: ben.lookup_inode(secret),
        lambda: ben.list("/home/anne"), lambda: ben.list(paths.of_inode(home)),
        lambda: ben.posix.list_extended_attributes(by_inode), lambda: ben.create(new, uid=BEN, gid=BEN),
        lambda: ben.mkdir(new, uid=BEN, gid=BEN), lambda: ben.posix.make_symbolic_link(new, b"x", BEN, BEN),
        lambda: ben.posix.make_special(new, pb.FIFO, 0o600, uid=BEN, gid=BEN), lambda: ben.posix.link("/public", new),
        lambda: ben.posix.link(by_inode, "/tmp/mine"), lambda: ben.remove("/home/anne/secret"),
        lambda: ben.rename("/home/anne/secret", "/tmp/mine"), lambda: ben.rename("/home/ben/secret", new),
        lambda: ben.set_attributes(by_inode, mode=0o777), lambda: ben.truncate(by_inode),
        lambda: ben.posix.set_extended_attribute(by_inode, b"user.a", b"b"),
        lambda: ben.posix.set_extended_attribute("/public", acls.ACCESS, acl),
        lambda: ben.posix.set_extended_attribute("/public", b"user.a", b"b"),
        lambda: ben.posix.set_extended_attribute("/home/ben", b"trusted.a", b"b"),
        lambda: ben.set_attributes("/public", mtime_ns=1), lambda: ben.set_attributes("/public", mtime_now=True),
        lambda: ben.truncate("/public"), lambda: ben.commit(operator.lookup("/public").inode, "0" * 36, 1000),
        lambda: ben.remove("/tmp/of-anne"), lambda: ben.rename("/tmp/of-anne", "/tmp/of-ben"),
        lambda: ben.remove("/public"), lambda: ben.create("/new", uid=BEN, gid=BEN)]
    words = {refused(attempt) for attempt in attempts}
    assert words == {"the mount ben may not do that: its certificate is for the users 1001 in /, with what these may "
                     "do there"}
    assert tree(cluster) == before


def test_who_claims_to_be_another_user_is_refused_and_root_is_nobody(cluster: LocalCluster, names: Names) -> None:
    ben = names("ben")
    before = tree(cluster)
    for uid, gid in ((ANNE, BEN), (BEN, ANNE), (ANNE, ANNE), (0, ANNE)):
        refused(lambda uid=uid, gid=gid: ben.create("/tmp/f", uid=uid, gid=gid))
    refused(lambda: ben.set_attributes("/home/ben/secret", uid=0))
    refused(lambda: ben.set_attributes("/home/ben/secret", gid=ANNE))
    refused(lambda: ben.posix.make_special("/tmp/disk", pb.BLOCK_DEVICE, 0o600, uid=0, gid=0, device=0x801))
    assert tree(cluster) == before
    made, _ = ben.create("/tmp/roots", 0o6755, 0, 0)
    assert (made.uid, made.gid) == (NOBODY, NOBODY)
    ben.remove("/tmp/roots")


def test_the_audit_log_names_who_did_it_and_who_was_refused(cluster: LocalCluster, names: Names) -> None:
    ben = names("ben")
    ben.create("/home/ben/logged", 0o600, BEN, BEN)
    ben.rename("/home/ben/logged", "/home/ben/moved", uid=BEN)
    ben.remove("/home/ben/moved", uid=BEN)
    refused(lambda: ben.remove("/home/anne/secret"))
    ben.create("/home/ben/blamed", 0o600, BEN, BEN)
    refused(lambda: ben.remove("/home/ben/blamed", uid=ANNE))
    refused(lambda: ben.rename("/home/ben/blamed", "/home/ben/b", uid=ANNE))
    ben.remove("/home/ben/blamed", uid=0)
    refused(lambda: ben.operator.set_draining("d0", True))

    def found() -> list[tuple[object, ...]]:
        lines = [json.loads(line) for line in (cluster.directory / "audit").read_text().splitlines()]
        return [(line["what"], line.get("path"), line.get("uid"), line["result"]) for line in lines
                if line["who"] == "mount ben" and line["from"] == "127.0.0.1"]

    wait_until(lambda: found()[-9:] == [
        ("Create", "/home/ben/logged", BEN, "ok"), ("Rename", None, BEN, "ok"),
        ("Remove", "/home/ben/moved", BEN, "ok"), ("Remove", "/home/anne/secret", None, "NotAuthorised"),
        ("Create", "/home/ben/blamed", BEN, "ok"),
        ("Remove", "/home/ben/blamed", ANNE, "NotAuthorised"), ("Rename", None, ANNE, "NotAuthorised"),
        ("Remove", "/home/ben/blamed", NOBODY, "ok"), ("SetDraining", None, None, "NotAuthorised")],
        15, "the audit log does not have it")


def test_users_do_what_they_may(cluster: LocalCluster, names: Names) -> None:
    ben = names("ben")
    made, _ = ben.create("/home/ben/mine", 0o444, BEN, BEN)
    assert tokens.read(made.token).rights == tokens.READ | tokens.WRITE | tokens.BOUND
    ben.set_attributes("/home/ben/mine", mode=0o640, gid=BEN, atime_ns=5)
    ben.posix.set_extended_attribute("/home/ben/mine", b"user.a", b"b")
    assert ben.posix.list_extended_attributes("/home/ben/mine") == {b"user.a": b"b"}
    ben.posix.link("/home/ben/mine", "/tmp/bens")
    ben.rename("/tmp/bens", "/tmp/bens-too")
    ben.remove("/tmp/bens-too")
    ben.mkdir("/home/ben/d", uid=BEN, gid=BEN)
    ben.rename("/home/ben/d", "/tmp/d")
    ben.rmdir("/tmp/d")
    ben.truncate("/home/ben/mine")
    ben.remove("/home/ben/mine")
    assert tokens.read(ben.lookup("/public").token).rights == tokens.READ | tokens.BOUND
    assert ben.lookup("/tmp/of-anne").token == b""
    listed = {entry.name: entry.attributes.token for entry in ben.list("/")}
    assert tokens.read(listed[b"public"]).rights == tokens.READ | tokens.BOUND
    assert {entry.attributes.token for entry in ben.list("/tmp") if entry.name == b"of-anne"} == {b""}


def test_a_directory_that_is_closed_or_moved_is_so_at_once(cluster: LocalCluster, names: Names) -> None:
    operator, ben, at_home = cluster.client().metadata, names("ben"), names("bens-home")
    operator.mkdir("/home/ben/d", 0o755, ANNE, ANNE)
    operator.create("/home/ben/d/f", 0o644, ANNE, ANNE)
    f = paths.of_inode(operator.lookup("/home/ben/d/f").inode)
    for client in (ben, at_home):
        client.lookup(f)
    operator.set_attributes("/home/ben/d", mode=0o700)
    for client in (ben, at_home):
        refused(lambda client=client: client.lookup(f))
    operator.set_attributes("/home/ben/d", mode=0o755)
    operator.rename("/home/ben/d", "/moved")
    ben.lookup(f)
    refused(lambda: at_home.lookup(f))
    operator.remove("/moved/f")
    operator.rmdir("/moved")


def test_a_list_lets_in_whom_the_mode_does_not(cluster: LocalCluster, names: Names) -> None:
    operator = cluster.client().metadata
    operator.create("/shared", 0o600, ANNE, ANNE)
    refused(lambda: names("ben").truncate("/shared"))
    operator.posix.set_extended_attribute("/shared", acls.ACCESS, struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry) for entry in ((acls.OWNER, 6, 0), (acls.USER, 6, BEN), (acls.OWNING_GROUP, 0, 0),
                                                  (acls.MASK, 6, 0), (acls.OTHER, 0, 0))))
    names("ben").truncate("/shared")
    operator.remove("/shared")


def test_contents_are_served_to_who_may_read_them(cluster: LocalCluster) -> None:
    with Client(cluster.nameserver.address, identity=cluster.identity("ben")) as ben:
        for path in ("/public", "/home/ben/secret"):
            with ben.open_read(path) as reader:
                assert reader.read(0, 100) == DATA
        ben.append("/home/ben/secret", b"!")
        refused(lambda: ben.open_read("/home/anne/secret"))
        looked_up = Mock(wraps=ben.metadata.lookup_inode)
        with patch.object(ben.metadata, "lookup_inode", looked_up), \
                pytest.raises(AppendFailed, match="no right to write"):
            ben.append("/public", b"!")
        assert looked_up.call_count <= 3, "it was tried again, though the nameserver gives no right"
    with cluster.client().open_read("/public") as reader:
        assert reader.read(0, 100) == DATA


@pytest.mark.parametrize(("mode", "attribute"), [(0o4777, b""), (0o2777, b""), (0o777, CAPABILITIES)])
def test_who_could_write_to_a_file_before_it_lent_rights_writes_none_with_these(cluster: LocalCluster, mode: int,
                                                                             attribute: bytes) -> None:
    """Who asks as a mount does takes them first; one that keeps its token is refused once the dataserver heard."""
    operator = cluster.client(metadata_cache_seconds=0)
    file = operator.create("/program", 0o777, ANNE, ANNE)
    operator.append("/program", DATA)
    with Client(cluster.nameserver.address, identity=cluster.identity("ben")) as hostile, \
            Client(cluster.nameserver.address, identity=cluster.identity("ben")) as honest, \
            hostile.open_append("/program") as kept, honest.open_append("/program") as appender:
        operator.metadata.set_attributes("/program", mode=mode)
        if attribute:
            operator.metadata.posix.set_extended_attribute("/program", attribute, b"\1\0\0\2" + bytes(16))
        admission = cluster.data_directory("d0") / "admission"
        wait_until(lambda: any(each.file_id == file.file_id for each in
                               pb.Admission.FromString(admission.read_bytes()).revocations), 15, "it is not told")
        kept.write(b"by Ben")
        with patch.object(hostile._context.tokens, "look_up_to_write",
                          lambda known: hostile.metadata.lookup_inode(known.inode, to_append=True)), \
                pytest.raises(AppendFailed, match="a program that lends rights"):
            kept.flush()
        assert operator.lookup("/program").size == len(DATA)
        assert stat.S_IMODE(operator.lookup("/program").mode) == mode
        appender.write(b"!")
        appender.flush()
    assert stat.S_IMODE(operator.lookup("/program").mode) == 0o777
    assert not operator.metadata.posix.list_extended_attributes("/program")
    with operator.open_read("/program") as reader:
        assert reader.read(0, 100) == DATA + b"!"
    operator.remove("/program")


def test_a_sub_tree_is_all_there_is(cluster: LocalCluster, names: Names) -> None:
    operator = cluster.client().metadata
    for identity in ("bens-home", "root"):
        ben = names(identity)
        assert ben.lookup("/home/ben").uid == BEN
        assert {entry.name for entry in ben.list(paths.of_inode(operator.lookup("/home/ben").inode))} == {b"secret"}
        for path in ("/", "/home", "/public", "/home/anne", "/home/missing", paths.of_inode(1),
                     paths.of_inode(operator.lookup("/public").inode)):
            assert "in /home/ben" in refused(lambda path=path, ben=ben: ben.lookup(path))
        refused(lambda ben=ben: ben.posix.link("/public", "/home/ben/public"))
        refused(lambda ben=ben: ben.rename("/home/ben/secret", "/tmp/secret"))
        refused(lambda ben=ben: ben.quotas())
    root = names("root")
    root.set_attributes("/home/ben/secret", uid=0, gid=0, mode=0o4755)
    assert stat.S_IMODE(operator.lookup("/home/ben/secret").mode) == 0o4755
    root.set_attributes("/home/ben/secret", uid=BEN, gid=BEN, mode=0o644)


def test_a_reader_for_a_user_reads_what_that_one_may(names: Names) -> None:
    reader = names("bens-reader")
    assert tokens.read(reader.lookup("/home/ben/secret").token).rights == tokens.READ | tokens.BOUND
    refused(lambda: reader.lookup("/home/anne/secret"))


def test_a_renewed_certificate_is_for_the_same_users(cluster: LocalCluster, names: Names) -> None:
    cluster.authority.renew(["ben"])
    refused(lambda: names("ben").lookup("/home/anne/secret"))


def test_only_mounts_and_readers_are_for_some_users(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(SpeedwellError, match="the role operator is for everybody"):
        cluster.authority.issue("all", "operator", Scope(((1, 1),), ((1, 1),)))


@pytest.mark.root
def test_a_mount_serves_its_own_users_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    mount = Mounted(tmp_path / "mount", cluster.nameserver.address, "--identity", str(cluster.identity("ben")))

    def run_as(uid: int, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "sh", "-c", command],
            cwd=mount.path, capture_output=True, text=True, check=False, timeout=30)

    try:
        done = run_as(BEN, "set -e; umask 222; echo one >tmp/f; cat tmp/f; mv tmp/f home/ben/f; "
                           "chmod 600 home/ben/f; echo two >>home/ben/f; cat home/ben/f public; rm home/ben/f")
        assert (done.stdout, done.stderr) == ("one\none\ntwo\n" + DATA.decode(), "")
        operator = cluster.client()
        operator.create("/setuid", 0o4666, ANNE, ANNE)
        operator.append("/setuid", b"one\n")
        with Client(cluster.nameserver.address, identity=cluster.identity("ben")) as hostile, \
                pytest.raises(AppendFailed, match="no right to write"):
            hostile.append("/setuid", b"as Anne")
        done = run_as(BEN, "echo two >>setuid && stat -c %a setuid && cat setuid")
        assert (done.stdout, done.stderr) == ("666\none\ntwo\n", "")
        operator.remove("/setuid")
        done = run_as(BEN, "cp /bin/true tmp/own; chmod u+s tmp/own; sync tmp/own; stat -c %a tmp/own; rm tmp/own")
        assert (done.stdout, done.stderr) == ("4755\n", "")
        for command in ("cat home/anne/secret", "echo >public", "touch tmp/f", "rm tmp/of-anne"):
            assert "Permission denied" in run_as(ANNE, command).stderr, command
        operator.mkdir("/open", 0o777)      # in a sticky one fs.protected_regular would refuse what becomes nobody's
        (mount.path / "open" / "roots").touch()
        assert (mount.path / "open" / "roots").stat().st_uid == NOBODY
        (mount.path / "open" / "roots").unlink()
        assert mount.stop() == 0
    finally:
        mount.clean_up()
