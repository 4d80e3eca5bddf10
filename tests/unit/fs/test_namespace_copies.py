"""A namespace dumped to a file and loaded into a new nameserver is the same; what is no dump changes nothing."""

import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from speedwell.cluster.errors import InvalidDump
from speedwell.cluster.namespace_file import NamespaceFile, write
from speedwell.fs.client.names.namespace_copies import NamespaceCopies
from speedwell.fs.errors import (
    DirectoryNotEmpty,
    InvalidArgument,
    NameserverUnavailable,
    SpeedwellError,
    StorageFailed,
)
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import JournaledStore, LevelDBStore, MemoryStore, Position
from speedwell.fs.store.journal import Journal
from tests.namespace_histories import NamespaceHistory


class Installation:
    """A nameserver's service with dataservers, and what a client copies of it. Each part is asked for twice, as if
    the first answer had been lost."""

    def __init__(self, dataservers: tuple[str, ...] = ("d0", "d1", "d2"), store: Any = None) -> None:
        self.store = store or MemoryStore()
        self.copies = NamespaceCopies(self.ask)
        self.restart()
        for port, name in enumerate(dataservers, 7000):
            self.service.dataservers.heartbeat(pb.HeartbeatRequest(
                server=pb.Replica(dataserver_id=name, host="10.0.0.1", port=port, rack=f"r{port}"),
                capacity_bytes=1 << 40, available_bytes=1 << 39))

    def restart(self) -> None:
        self.service = NameserverService(self.store, Settings(deletion_grace_seconds=60), generator=random.Random(1),
                                         clock_seconds=lambda: 1000.0)

    def ask(self, method: str, request: Any) -> Any:
        answer: Callable[[Any], Any] = {"Dump": self.service.copies.dump, "Load": self.service.copies.load}[method]
        first = answer(request)
        assert answer(request) == first
        return first

    def file(self) -> bytes:
        stream = io.BytesIO()
        write(self.copies.dump(), stream, lambda count: None)
        return stream.getvalue()

    def fill(self, file: bytes) -> pb.LoadReply:
        dumped = NamespaceFile(io.BytesIO(file))
        return self.copies.load(dumped.records(), dumped.next_inode)

    def view(self) -> dict[bytes, Any]:
        """Everything that a client can see, by path."""
        found: dict[bytes, Any] = {}
        waiting = [b"/"]
        while waiting:
            path = waiting.pop()
            reply = pb.ListReply.FromString(self.service.list(pb.ListRequest(path=path, limit=1000)))
            entries = [(entry.name, entry.attributes) for entry in reply.entries]
            for name, attributes in [(b"", reply.directory), *entries]:
                there = path if not name else path.rstrip(b"/") + b"/" + name
                names = [replica.dataserver_id for replica in attributes.replicas]     # addresses are the servers'
                attributes.ClearField("replicas")
                attributes.ClearField("token")
                xattrs = self.service.posix.list_extended_attributes(pb.ListExtendedAttributesRequest(path=there))
                is_directory = attributes.type == pb.DIRECTORY
                quotas = self.service.quota.quotas(pb.QuotasRequest(path=there)) if is_directory else None
                for quota in quotas.quotas if quotas else ():
                    quota.ClearField("counting")
                    quota.ClearField("above")
                found[there] = attributes, names, xattrs, quotas
                if name and is_directory:
                    waiting.append(there)
        inodes = {attributes.inode for attributes, *_ in found.values()}
        found[b"trash"] = {directory: policy.keep_ns        # their paths are those of when they were set
                           for directory, policy in self.service._namespace.trash.policies.items()
                           if directory in inodes}
        return found


def without_header(file: bytes) -> list[bytes]:
    return file.splitlines()[1:-1]


def history(installation: Installation, seed: int, count: int) -> None:
    generator = random.Random(seed)
    changes = NamespaceHistory(lambda: installation.service, generator)
    changes.run(count // 2)
    service = installation.service
    for path in (b"/", b"/a", b"/a/b", b"/b"):
        if generator.random() < 0.4:
            with suppress(SpeedwellError):
                service.quota.set_quota(pb.SetQuotaRequest(path=path, max_bytes=10**12, max_files=10**6))
        if generator.random() < 0.4:
            with suppress(SpeedwellError):
                service.trash.set_trash(pb.SetTrashRequest(path=path, keep_ns=10**15))
        _count_quotas(service)
    changes.run(count // 2)
    _count_quotas(service)
    service.sessions.end_session(pb.EndSessionRequest(session=5))    # whatever it has open counts toward quotas
    installation.restart()


def _count_quotas(service: NameserverService) -> None:
    while service._namespace.quotas.count():
        pass


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9), count=st.sampled_from([0, 10, 60, 200]))
@example(seed=14482, count=200)     # a file with names under two quotas
def test_what_is_dumped_and_loaded_is_the_same_to_whoever_looks(seed: int, count: int) -> None:
    before, after = Installation(), Installation(("d2", "d9", "d0"))
    history(before, seed, count)
    if not before.service._namespace.superblocks.next_inode > 2:
        return
    file = before.file()
    reply = after.fill(file)
    assert after.view() == before.view()
    assert reply.silent == ["d1"]
    assert reply.files + reply.directories == sum(b'"inode":{"number"' in line for line in file.splitlines())
    again = Installation()
    again.fill(after.file())
    assert again.view() == before.view()
    after.service.create(pb.CreateRequest(path=b"/made afterwards", mode=0o600))
    made = after.service.lookup(pb.LookupRequest(path=b"/made afterwards")).attributes
    assert made.inode > before.service._namespace.superblocks.next_inode + SKIPPED_INODES // 2


@given(name=st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 47} & set(name)
                                                       and name not in (b".", b"..")),
       target=st.binary(min_size=1, max_size=300).filter(lambda target: 0 not in target),
       value=st.binary(max_size=300), times=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)))
@settings(max_examples=40, deadline=None)
def test_any_bytes_and_any_time_survive(name: bytes, target: bytes, value: bytes, times: tuple[int, int]) -> None:
    before, after = Installation(), Installation()
    service = before.service
    service.make_directory(pb.MakeDirectoryRequest(path=b"/" + name, mode=0o1777, uid=3, gid=4))
    service.posix.make_symbolic_link(pb.MakeSymbolicLinkRequest(path=b"/" + name + b"/" + name, target=target))
    file = service.create(pb.CreateRequest(path=b"/" + name + b"/file", mode=0o6755)).attributes
    service.posix.link(pb.LinkRequest(source=b"/" + name + b"/file", destination=b"/second name"))
    service.commit(pb.CommitRequest(inode=file.inode, file_id=file.file_id, size=77))
    service.posix.set_extended_attribute(pb.SetExtendedAttributeRequest(
        path=b"/second name", extended_attribute=pb.ExtendedAttribute(name=b"user.\xff", value=value)))
    service.set_attributes(pb.SetAttributesRequest(path=b"/second name", atime_ns=times[0], mtime_ns=times[1]))
    after.fill(before.file())
    assert after.view() == before.view()
    assert after.view()[b"/second name"][0].link_count == 2


def small() -> Installation:
    installation = Installation()
    service = installation.service
    service.make_directory(pb.MakeDirectoryRequest(path=b"/a", mode=0o755))
    service.create(pb.CreateRequest(path=b"/a/f", mode=0o644))
    service.create(pb.CreateRequest(path=b"/g", mode=0o644))
    return installation


def test_what_passes_is_not_dumped() -> None:
    installation = small()
    service = installation.service
    service.trash.set_trash(pb.SetTrashRequest(path=b"/", keep_ns=10**15))
    service.remove(pb.RemoveRequest(path=b"/g"))
    service.sessions.renew_session(pb.RenewSessionRequest(session=5))
    service.trash.set_trash(pb.SetTrashRequest(path=b"/", keep_ns=0))
    service.remove(pb.RemoveRequest(path=b"/a/f", session=5))
    after = Installation()
    assert (after.fill(installation.file()).files, after.service._namespace.superblocks.file_count) == (0, 0)
    assert after.view().keys() == {b"/", b"/a", b"trash"}


def test_a_dump_is_of_one_moment_whatever_is_changed_meanwhile() -> None:
    installation = small()
    for number in range(3000):
        installation.service.create(pb.CreateRequest(path=b"/a/%04d" % number, mode=0o644))
    expected = installation.view()
    parts = installation.copies.dump()
    first = next(parts)
    assert not first.last, "the test needs more than a part"
    installation.service.remove(pb.RemoveRequest(path=b"/a/2999"))
    installation.service.create(pb.CreateRequest(path=b"/zzz", mode=0o644))
    stream = io.BytesIO()
    write([first, *parts], stream, lambda count: None)
    after = Installation()
    after.fill(stream.getvalue())
    assert after.view() == expected


def test_a_namespace_in_which_anything_was_made_is_not_loaded_into() -> None:
    file, target = small().file(), small()
    before = target.view()
    with pytest.raises(DirectoryNotEmpty, match="only into a new installation"):
        target.fill(file)
    target.service.remove(pb.RemoveRequest(path=b"/g"))
    target.service.remove(pb.RemoveRequest(path=b"/a/f"))
    target.service.remove(pb.RemoveRequest(path=b"/a", directory=True))
    with pytest.raises(DirectoryNotEmpty):
        target.fill(file)
    assert before.keys() > target.view().keys()
    limited = Installation()
    limited.service.quota.set_quota(pb.SetQuotaRequest(path=b"/", max_files=5))
    with pytest.raises(DirectoryNotEmpty):
        limited.fill(file)


def edited(file: bytes, edit: Callable[[list[dict[str, Any]]], None]) -> list[pb.NamespaceRecord]:
    """The records of a dump after `edit` of its documents, whatever its checksum."""
    documents = [json.loads(line) for line in without_header(file)]
    edit(documents)
    stream = io.BytesIO()
    lines = [json.dumps(document).encode() + b"\n" for document in documents]
    header = file.splitlines(keepends=True)[0]
    from crc32c import crc32c

    total = crc32c(header + b"".join(lines))
    end = json.dumps({"records": len(lines), "crc32c": f"{total:08x}"}).encode()
    stream.write(header + b"".join(lines) + end + b"\n")
    stream.seek(0)
    return list(NamespaceFile(stream).records())


def _find(documents: list[dict[str, Any]], kind: str, **fields: Any) -> dict[str, Any]:
    return next(each[kind] for each in documents if kind in each
                and all(each[kind].get(name) == value for name, value in fields.items()))


EDITS: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "an inode less": (lambda d: d.remove(next(e for e in d if e.get("inode", {}).get("number") == "3")), "inode 3"),
    "an inode twice": (lambda d: d.append(next(e for e in d if "inode" in e)), "given twice"),
    "a name twice": (lambda d: d.append(next(e for e in d if "entry" in e)), "given twice"),
    "no root": (lambda d: d.remove(next(e for e in d if e.get("inode", {}).get("number") == "1")), "root"),
    "a cycle": (lambda d: _find(d, "entry", name="a").update(directory="2"), "no name leads to it"),
    "a second name of a directory": (lambda d: d.append({"entry": {"directory": "1", "name": "x", "inode": "2"}}),
                                     "has 2 names"),
    "a name of the root": (lambda d: d.append({"entry": {"directory": "2", "name": "x", "inode": "1"}}), "none"),
    "a file as directory": (lambda d: d.append({"entry": {"directory": "3", "name": "x", "inode": "4"}}),
                            "no directory"),
    "a name with a slash": (lambda d: _find(d, "entry", name="g").update(name="a/b"), "no /"),
    "a name ..": (lambda d: _find(d, "entry", name="g").update(name=".."), "is no name"),
    "a mode": (lambda d: _find(d, "inode", number="3")["inode"].update(mode=0o17777), "inode 3: mode"),
    "a content of a directory": (lambda d: _find(d, "inode", number="2")["inode"].update(content={}), "content"),
    "a content twice": (lambda d: _find(d, "inode", number="3")["inode"].update(
        content=_find(d, "inode", number="4")["inode"]["content"]), "file_id"),
    "a size": (lambda d: _find(d, "inode", number="3")["inode"]["content"].update(size=str(2**63)), "size"),
    "an unknown dataserver": (lambda d: _find(d, "inode", number="3")["inode"]["content"].update(replicas=[9]),
                              "no dataserver 9"),
    "a dataserver twice": (lambda d: _find(d, "dataserver", dataserver_id="d1").update(dataserver_id="d0"),
                           "given twice"),
    "a quota on a file": (lambda d: d.append({"quota": {"directory": "3", "max_files": "5"}}), "no directory"),
    "nothing": (lambda d: d.append({}), "no kind"),
}


@pytest.mark.parametrize("name", EDITS)
def test_records_that_do_not_go_together_are_refused_and_nothing_is_loaded(name: str) -> None:
    edit, told = EDITS[name]
    target = Installation()
    before = dict(target.store.iterate(b""))
    with pytest.raises(InvalidArgument, match=told):
        target.copies.load(edited(small().file(), edit), 9)
    assert dict(target.store.iterate(b"")) == before
    target.fill(small().file())
    assert target.view().keys() == small().view().keys()


@pytest.mark.parametrize(("change", "told"), [
    (lambda file: file[:-30], "not JSON|cut off"),
    (lambda file: b"".join(file.splitlines(keepends=True)[:-1]), "its last line is missing"),
    (lambda file: file.replace(b'"mode":420', b'"mode":421', 1), "not as it was written"),
    (lambda file: file + b"{}\n", "something follows"),
    (lambda file: file.replace(b'"entry":{', b'"entries":{', 1), "line [0-9]+: .*entries"),
    (lambda file: file.replace(b'"mode":420', b'"mode":"x"', 1), "line [0-9]+: "),
    (lambda file: file.replace(b'"version":1', b'"version":2', 1), "line 1: .*version 2"),
    (lambda file: b"PK\3\4", "line 1: this is not"),
    (lambda file: b"", "line 1: this is not"),
    (lambda file: b"[]\n", "line 1: "),
    (lambda file: b'{"a": 1}\n', "line 1: this is not a dump"),
])
def test_a_damaged_file_is_refused_by_its_line_and_nothing_is_loaded(change: Any, told: str) -> None:
    target = Installation()
    before = dict(target.store.iterate(b""))
    with pytest.raises(InvalidDump, match=told):
        target.fill(change(small().file()))
    assert dict(target.store.iterate(b"")) == before


class Slow(Installation):
    """The answer to the last part of a load comes when the client has stopped waiting, twice."""

    late = 2

    def ask(self, method: str, request: Any) -> Any:
        reply = super().ask(method, request)
        if method == "Load" and request.last and self.late:
            self.late -= 1
            raise NameserverUnavailable("it did not answer within 5 s")
        return reply


def test_a_load_that_takes_long_is_waited_for() -> None:
    target = Slow()
    assert target.fill(small().file()).files == 2 and not target.late
    assert {b"/a/f", b"/g"} <= target.view().keys()


def test_a_disk_that_is_full_leaves_the_namespace_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Installation()
    write_batch = target.store.write

    def refuse(batch: Any) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(target.store, "write", refuse)
    with pytest.raises(StorageFailed):
        target.fill(small().file())
    monkeypatch.setattr(target.store, "write", write_batch)
    assert target.view().keys() == {b"/", b"trash"}
    target.fill(small().file())
    assert b"/a/f" in target.view()


def test_a_loaded_namespace_is_there_after_a_crash_and_its_copies_are_made_anew(tmp_path: Any) -> None:
    store = JournaledStore.begin(LevelDBStore(tmp_path / "namespace"), Journal(tmp_path / "journal", last=0),
                                 Position(b"n" * 16, timeline=1 << 16))
    source, target = small(), Installation(store=store)
    for number in range(40):
        source.service.create(pb.CreateRequest(path=b"/%d" % number, mode=0o644))
        source.service.posix.set_extended_attribute(pb.SetExtendedAttributeRequest(
            path=b"/%d" % number, extended_attribute=pb.ExtendedAttribute(name=b"user.a", value=bytes(60_000))))
    before = store.position
    target.fill(source.file())
    assert store.journal.read(before.sequence, store.position.sequence, 1 << 20) is None, "it is not in the journal"
    target.service.create(pb.CreateRequest(path=b"/afterwards", mode=0o644))
    store.close()
    reopened = JournaledStore(LevelDBStore(tmp_path / "namespace", create=False),
                              Journal(tmp_path / "journal", last=0))
    assert reopened.position == store.position
    namespace = Installation(store=reopened).service._namespace
    assert namespace.superblocks.file_count == 43
    assert namespace.tree.lookup(b"/39").number < namespace.tree.lookup(b"/afterwards").number
    reopened.close()
