"""Requests in, replies or errors out, without a network; time is set by the tests."""

import random
import stat
import threading
from operator import attrgetter
from typing import Any

import pytest

from speedwell.fs import tokens
from speedwell.fs.errors import (
    InvalidArgument,
    InvalidName,
    NameTooLong,
    NoReplicaAvailable,
    NoSpace,
    NoSuchFile,
    StaleEpoch,
    StaleFile,
)
from speedwell.fs.file_status import STATUS
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.fs.nameserver.replicas.placement_questions import EXPECTED_SIZE, SAMPLED_SECONDS
from speedwell.fs.nameserver.replicas.registry import LEASE_SECONDS
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore
from speedwell.fs.tokens import READ, WRITE
from speedwell.fs.wire.channel import MAX_FRAME_BYTES

UUID = "01234567-89ab-cdef-0123-456789abcdef"


class Bench:
    """A service with clocks in the test's hands and some dataservers, two to a rack."""

    def __init__(self, dataservers: int = 4) -> None:
        self.store = MemoryStore()
        self.now_seconds = 1000.0
        self.wall_clock_off_seconds = 0.0
        self.service = self._service()
        for number in range(dataservers):
            self.beat(number)

    def beat(self, number: int, **fields: Any) -> pb.HeartbeatReply:
        fields.setdefault("capacity_bytes", 1000)
        fields.setdefault("available_bytes", 500)
        fields.setdefault("term", self.service.provenance.term)
        fields.setdefault("inventory_complete", True)
        return self.service.dataservers.heartbeat(pb.HeartbeatRequest(server=server(number), **fields))

    def create(self, path: bytes = b"/f", **fields: Any) -> pb.Attributes:
        return self.service.create(pb.CreateRequest(path=path, mode=0o644, **fields)).attributes

    def restart(self) -> None:
        self.service = self._service()

    def _service(self) -> NameserverService:
        return NameserverService(
            self.store, Settings(deletion_grace_seconds=60), generator=random.Random(1),
            clock_ns=lambda: int((self.now_seconds + self.wall_clock_off_seconds) * 1e9),
            clock_seconds=lambda: self.now_seconds)

    def lookup(self, path: bytes = b"/f", to_append: bool = False) -> pb.Attributes:
        return self.service.lookup(pb.LookupRequest(path=path, to_append=to_append)).attributes

    def list(self, request: pb.ListRequest) -> pb.ListReply:
        return pb.ListReply.FromString(self.service.list(request))

    def commit(self, attributes: pb.Attributes, size: int, **fields: Any) -> pb.Attributes:
        return self.service.commit(pb.CommitRequest(inode=attributes.inode, file_id=attributes.file_id,
                                                    size=size, **fields)).attributes


def server(number: int) -> pb.Replica:
    return pb.Replica(dataserver_id=f"d{number}", host=f"10.0.0.{number}", port=7000 + number,
                      rack=f"r{number // 2}", pod="p0")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ids(attributes: pb.Attributes) -> list[str]:
    return [replica.dataserver_id for replica in attributes.replicas]


class Advisor:
    """Stands for a controller; notes whether the guard is free when it is asked."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.counts: dict[str, int] = {}
        self.asked: list[tuple[int, str, int]] = []
        self.guard: Any = None
        self.guard_was_free = True

    def destinations(self, candidates: Any, replication: int, writer_host: str, size_bytes: int) -> Any:
        self.asked.append((replication, writer_host, size_bytes))
        others = threading.Thread(target=self._try_guard)
        others.start()
        others.join()
        return [candidate for number in self.numbers for candidate in candidates if candidate.number == number]

    def _try_guard(self) -> None:
        taken = self.guard.acquire(blocking=False)
        self.guard_was_free &= taken
        if taken:
            self.guard.release()


def advised_bench(*numbers: int) -> tuple[Bench, Advisor, Requests]:
    bench, advisor = Bench(), Advisor(*numbers)
    bench.service.questions.advice = advisor
    advisor.guard = bench.service.guard
    return bench, advisor, Requests(bench.service)


def create_through(requests: Requests, path: bytes, **fields: Any) -> pb.Attributes:
    sent = pb.CreateRequest(path=path, mode=0o644, **fields).SerializeToString()
    return pb.CreateReply.FromString(requests.answer("Create", sent)).attributes


def numbers_of(bench: Bench, attributes: pb.Attributes) -> list[int | None]:
    return [bench.service._registry.number_of(replica.dataserver_id) for replica in attributes.replicas]


def test_a_large_file_goes_where_the_controller_says_and_nobody_waits_for_that() -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    made = create_through(requests, b"/large", expected_size=LEAST_ADVISED_BYTES, client_host="10.0.0.1",
                          id=pb.ChangeId(requester=7, sequence=1))
    assert numbers_of(bench, made) == [3, 2, 1]
    assert advisor.asked == [(3, "10.0.0.1", LEAST_ADVISED_BYTES)]
    assert advisor.guard_was_free


@pytest.mark.parametrize("fields", [{}, {"expected_size": LEAST_ADVISED_BYTES - 1},
                                    {"expected_size": LEAST_ADVISED_BYTES, "replicas": ["d0", "d1"]}])
def test_small_files_and_files_with_a_place_of_their_own_never_ask(fields: dict[str, Any]) -> None:
    _, advisor, requests = advised_bench(3, 2, 1)
    create_through(requests, b"/file", **fields)
    assert advisor.asked == []


def fill(bench: Bench, path: bytes, size_bytes: int) -> None:
    bench.commit(bench.create(path), size_bytes)


def test_a_file_of_unknown_size_is_expected_to_be_as_long_as_its_neighbours() -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    for number, size_bytes in enumerate((LEAST_ADVISED_BYTES, 3 * LEAST_ADVISED_BYTES, 0)):
        fill(bench, b"/old%d" % number, size_bytes)
    made = create_through(requests, b"/new", client_host="10.0.0.1")
    assert numbers_of(bench, made) == [3, 2, 1]
    assert advisor.asked == [(3, "10.0.0.1", 2 * LEAST_ADVISED_BYTES)]
    assert advisor.guard_was_free


def test_neighbours_are_looked_at_now_and_then_and_small_ones_never_ask() -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    fill(bench, b"/small", LEAST_ADVISED_BYTES - 1)
    create_through(requests, b"/a")
    fill(bench, b"/large", 10 * LEAST_ADVISED_BYTES)
    create_through(requests, b"/b")
    assert advisor.asked == []
    bench.now_seconds += SAMPLED_SECONDS
    for number in range(4):
        bench.beat(number)
    create_through(requests, b"/c")
    assert len(advisor.asked) == 1


@pytest.mark.parametrize(("said", "asked"), [
    (b"16777216", [16777216]), (b"1000", []), (b"much", []), (b"9" * 30, []), (b"", [])])
def test_a_directory_may_say_how_long_its_files_will_be(said: bytes, asked: list[int]) -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/d", mode=0o755))
    bench.service.posix.set_extended_attribute(pb.SetExtendedAttributeRequest(
        path=b"/d", extended_attribute=pb.ExtendedAttribute(name=EXPECTED_SIZE, value=said)))
    create_through(requests, b"/d/file")
    assert [size_bytes for _, _, size_bytes in advisor.asked] == asked


def test_a_directory_that_is_not_there_asks_nobody() -> None:
    _, advisor, requests = advised_bench(3, 2, 1)
    with pytest.raises(NoSuchFile):
        create_through(requests, b"/nowhere/file")
    for path in (b"", b"file"):
        with pytest.raises(InvalidName):
            create_through(requests, path)
    assert advisor.asked == []


def truncate_through(requests: Requests, **fields: Any) -> pb.Attributes:
    sent = pb.TruncateRequest(path=b"/f", client_host="10.0.0.1", **fields).SerializeToString()
    return pb.TruncateReply.FromString(requests.answer("Truncate", sent)).attributes


def test_a_file_that_is_written_anew_is_expected_to_be_as_long_as_it_was() -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    bench.commit(bench.create(replication=2), LEAST_ADVISED_BYTES)
    advisor.numbers = (3, 1)
    assert numbers_of(bench, truncate_through(requests)) == [3, 1]
    assert advisor.asked == [(2, "10.0.0.1", LEAST_ADVISED_BYTES)]
    truncate_through(requests)
    assert len(advisor.asked) == 1


def test_an_empty_file_can_be_placed_anew_for_what_it_is_about_to_get() -> None:
    bench, advisor, requests = advised_bench(3, 2, 1)
    before = bench.create()
    after = truncate_through(requests, expected_size=LEAST_ADVISED_BYTES, if_empty=True)
    assert numbers_of(bench, after) == [3, 2, 1] and after.file_id != before.file_id
    bench.commit(after, 1)
    kept = truncate_through(requests, expected_size=LEAST_ADVISED_BYTES, if_empty=True)
    assert (kept.file_id, kept.size) == (after.file_id, 1)
    assert len(advisor.asked) == 1


def test_advice_that_is_out_of_date_when_it_comes_is_not_followed() -> None:
    bench, advisor, requests = advised_bench(1, 2, 3)
    answer = advisor.destinations

    def late(*arguments: Any) -> Any:
        chosen = answer(*arguments)
        bench.now_seconds += LEASE_SECONDS + 1
        bench.beat(3)
        return chosen

    advisor.destinations = late  # type: ignore[method-assign]
    made = create_through(requests, b"/large", expected_size=LEAST_ADVISED_BYTES)
    assert [replica.dataserver_id for replica in made.replicas] == ["d3"]


def test_a_new_file_has_three_replicas_in_two_racks_near_its_writer(bench: Bench) -> None:
    attributes = bench.create(client_host="10.0.0.2")
    assert ids(attributes)[:2] == ["d2", "d3"]
    assert attributes.replicas[2].rack == "r0"
    assert all(replica.alive for replica in attributes.replicas)
    assert attributes.replicas[0].port == 7002
    assert (attributes.type, attributes.size, attributes.chunk_size) == (pb.REGULAR, 0, 256 << 20)
    assert bench.lookup() == attributes


def test_a_file_may_ask_for_its_own_replication_and_chunk_size(bench: Bench) -> None:
    attributes = bench.create(replication=1, chunk_size=4096)
    assert (len(attributes.replicas), attributes.chunk_size) == (1, 4096)


def test_a_file_may_ask_for_its_dataservers_the_primary_first(bench: Bench) -> None:
    attributes = bench.create(replicas=["d3", "d0"], client_host="10.0.0.2")
    assert ids(attributes) == ["d3", "d0"]
    assert ids(bench.lookup()) == ["d3", "d0"]


def test_a_dataserver_that_cannot_take_a_file_refuses_those_that_ask_for_it(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match="no dataserver is called 'd9'"):
        bench.create(replicas=["d0", "d9"])
    bench.beat(1, available_bytes=0)
    with pytest.raises(NoSpace, match="d1 is full"):
        bench.create(replicas=["d0", "d1"])
    bench.now_seconds += LEASE_SECONDS + 1
    bench.beat(0)
    with pytest.raises(NoReplicaAvailable, match="d2 is not alive"):
        bench.create(replicas=["d0", "d2"])
    with pytest.raises(NoSuchFile):
        bench.lookup()


def test_with_fewer_live_dataservers_there_are_fewer_replicas() -> None:
    assert len(Bench(dataservers=2).create().replicas) == 2


def test_with_no_live_dataserver_a_create_fails_and_leaves_nothing(bench: Bench) -> None:
    bench.now_seconds += LEASE_SECONDS + 1
    with pytest.raises(NoReplicaAvailable, match="no dataserver is alive"):
        bench.create()
    with pytest.raises(NoSuchFile):
        bench.lookup()


def test_with_all_disks_full_a_create_is_refused_for_space(bench: Bench) -> None:
    for number in range(4):
        bench.beat(number, available_bytes=0)
    with pytest.raises(NoSpace):
        bench.create()


def test_another_primary_is_named_only_when_the_lease_has_ended(bench: Bench) -> None:
    made = bench.create()
    primary, *others = ids(made)
    bench.now_seconds += LEASE_SECONDS
    for dataserver_id in others:
        bench.beat(int(dataserver_id[1:]))
    assert ids(bench.lookup(to_append=True)) == [primary, *others]
    bench.now_seconds += 0.1
    seen = bench.lookup()
    assert (ids(seen), seen.epoch) == ([primary, *others], 1)
    assert [replica.alive for replica in seen.replicas] == [False, True, True]
    seen = bench.lookup(to_append=True)
    assert (ids(seen), seen.epoch) == ([*others, primary], 2)
    bench.beat(int(primary[1:]))
    assert ids(bench.lookup(to_append=True)) == [*others, primary]


def test_after_a_restart_nobody_is_deposed_before_a_lease_can_have_ended(bench: Bench) -> None:
    made = bench.create()
    bench.now_seconds += 100
    bench.restart()
    for dataserver_id in ids(made)[1:]:
        bench.beat(int(dataserver_id[1:]))
    assert ids(bench.lookup(to_append=True)) == ids(made)
    bench.now_seconds += LEASE_SECONDS + 0.1
    bench.beat(int(ids(made)[1][1:]))
    assert ids(bench.lookup(to_append=True))[0] == ids(made)[1]


@pytest.mark.parametrize("jump_seconds", [86400.0, -86400.0])
def test_a_jump_of_the_wall_clock_ends_no_lease_and_makes_none_longer(bench: Bench, jump_seconds: float) -> None:
    made = bench.create()
    bench.wall_clock_off_seconds = jump_seconds
    assert ids(bench.lookup(to_append=True)) == ids(made)
    assert all(replica.alive for replica in bench.lookup().replicas)
    bench.now_seconds += LEASE_SECONDS + 0.1
    bench.beat(int(ids(made)[1][1:]))
    assert ids(bench.lookup(to_append=True))[0] == ids(made)[1]


def test_truncation_keeps_replication_and_chunk_size_of_the_file(bench: Bench) -> None:
    made = bench.create(replication=2, chunk_size=4096)
    bench.commit(made, 10)
    truncated = bench.service.truncate(pb.TruncateRequest(path=b"/f")).attributes
    assert (truncated.size, len(truncated.replicas), truncated.chunk_size) == (0, 2, 4096)
    assert truncated.file_id != made.file_id
    with pytest.raises(StaleFile):
        bench.commit(made, 20)


def change(bench: Bench, attributes: pb.Attributes, **fields: Any) -> pb.ChangeReplicasReply:
    fields.setdefault("dataserver_id", ids(attributes)[0])
    fields.setdefault("epoch", attributes.epoch)
    return bench.service.dataservers.change_replicas(pb.ChangeReplicasRequest(
        inode=attributes.inode, file_id=attributes.file_id, **fields))


def test_a_primary_takes_a_replica_out_of_the_set_and_another_one_in(bench: Bench) -> None:
    made = bench.create()
    outside = next(name for name in ("d0", "d1", "d2", "d3") if name not in ids(made))
    reply = change(bench, made, remove=[ids(made)[1]], add=[outside])
    assert ([replica.dataserver_id for replica in reply.replicas], reply.epoch) == (
        [ids(made)[0], ids(made)[2], outside], 2)
    assert (ids(bench.lookup()), bench.lookup().epoch) == ([ids(made)[0], ids(made)[2], outside], 2)


def test_who_is_not_the_primary_or_knows_an_old_epoch_changes_nothing(bench: Bench) -> None:
    made = bench.create()
    with pytest.raises(StaleEpoch):
        change(bench, made, dataserver_id=ids(made)[1], remove=[ids(made)[2]])
    change(bench, made, remove=[ids(made)[1]])
    with pytest.raises(StaleEpoch):
        change(bench, made, remove=[ids(made)[2]])
    assert ids(bench.lookup()) == [ids(made)[0], ids(made)[2]]


def test_heartbeats_repair_lengths_that_no_client_committed(bench: Bench) -> None:
    made = bench.create()
    primary = int(ids(made)[0][1:])
    bench.beat(primary, lengths=[pb.FileLength(file_id=made.file_id, inode=made.inode, size=77)])
    assert bench.lookup().size == 77


def test_a_heartbeat_with_a_length_that_makes_no_sense_still_counts(bench: Bench) -> None:
    made = bench.create()
    primary = int(ids(made)[0][1:])
    bench.now_seconds += LEASE_SECONDS + 1
    bench.beat(primary, lengths=[pb.FileLength(file_id="nonsense", inode=made.inode, size=5),
                                 pb.FileLength(file_id=made.file_id, inode=0, size=5),
                                 pb.FileLength(file_id=made.file_id, inode=made.inode, size=2**64 - 1),
                                 pb.FileLength(file_id=made.file_id, inode=made.inode, size=7)])
    assert bench.lookup().size == 7
    assert bench.lookup().replicas[0].alive


def test_a_removed_files_content_is_deleted_after_the_grace_period(bench: Bench) -> None:
    made = bench.create()
    holder = int(ids(made)[1][1:])
    bench.service.remove(pb.RemoveRequest(path=b"/f"))
    bench.now_seconds += 59
    assert list(bench.beat(holder).delete) == []
    bench.now_seconds += 2
    assert list(bench.beat(holder).delete) == [made.file_id]
    assert list(bench.beat(holder, deleted=[made.file_id]).delete) == []


def test_statistics_count_files_and_live_capacity(bench: Bench) -> None:
    bench.create(b"/f")
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/d", mode=0o755))
    bench.now_seconds += LEASE_SECONDS + 1
    bench.beat(1)
    bench.beat(2)
    reply = bench.service.statistics(pb.StatisticsRequest())
    assert (reply.files, reply.directories) == (1, 2)
    assert (reply.capacity_bytes, reply.available_bytes) == (2000, 1000)
    assert [(status.server.dataserver_id, status.server.alive) for status in reply.dataservers] == [
        ("d0", False), ("d1", True), ("d2", True), ("d3", False)]
    assert reply.dataservers[0].last_heartbeat_seconds_ago == LEASE_SECONDS + 1
    assert (reply.replication, reply.chunk_size) == (3, 256 << 20)


def but_token(attributes: pb.Attributes) -> pb.Attributes:
    attributes.ClearField("token")
    return attributes


def test_listings_have_attributes_and_pages(bench: Bench) -> None:
    for number in range(5):
        bench.create(b"/f%d" % number)
    reply = bench.list(pb.ListRequest(path=b"/", after=b"f1", limit=2))
    assert [entry.name for entry in reply.entries] == [b"f2", b"f3"]
    assert reply.more
    listed, found = reply.entries[0].attributes, bench.lookup(b"/f2")
    assert (tokens.read(listed.token).rights, tokens.read(found.token).rights) == (READ, READ | WRITE)
    assert but_token(listed) == but_token(found)
    assert reply.directory.inode == 1
    assert len(bench.list(pb.ListRequest(path=b"/", limit=2**32 - 1)).entries) == 5


def test_a_listing_says_what_a_look_up_says_after_each_kind_of_change(bench: Bench) -> None:
    def listed() -> dict[bytes, pb.Attributes]:
        return {b"/" + entry.name: entry.attributes for entry in bench.list(pb.ListRequest(path=b"/")).entries}

    def agrees() -> bool:
        return all(but_token(attributes) == but_token(bench.lookup(path)) for path, attributes in listed().items())

    made = bench.create(b"/f")
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/d", mode=0o755))
    bench.service.posix.make_symbolic_link(pb.MakeSymbolicLinkRequest(path=b"/l", target=b"t" * 2000))
    assert len(listed()) == 3
    assert agrees()
    bench.commit(made, 5)
    assert listed()[b"/f"].size == 5
    assert agrees()
    bench.service.set_attributes(pb.SetAttributesRequest(path=b"/f", mode=0o600, mtime_ns=-1))
    assert agrees()
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/", max_bytes=1000))
    bench.create(b"/g")
    assert listed()[b"/g"].HasField("room")
    assert agrees()


def test_a_listing_in_columns_tells_what_stat_does(bench: Bench) -> None:
    file, directory = bench.create(b"/f").inode, bench.service.make_directory(pb.MakeDirectoryRequest(
        path=b"/d", mode=0o750, uid=3, gid=4)).attributes
    bench.service.set_attributes(pb.SetAttributesRequest(path=b"/d", mtime_ns=-1, atime_ns=5 * 10**9 + 6))
    for asked in (False, True):
        reply = bench.list(pb.ListRequest(path=b"/", columns=True, statuses=asked))
        assert (list(reply.names), list(reply.inodes), list(reply.kinds)) == (
            [b"d", b"f"], [directory.inode, file], [pb.DIRECTORY, pb.REGULAR])
        assert not reply.entries and reply.directory.type == pb.DIRECTORY
        assert len(reply.statuses) == asked * 2 * STATUS.size
    found = STATUS.unpack_from(reply.statuses)
    number, _, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, links, uid, gid, *_ = found
    assert (number, mode, links, uid, gid) == (directory.inode, stat.S_IFDIR | 0o750, 2, 3, 4)
    assert (atime, atime_ns, mtime, mtime_ns) == (5, 6, -1, 10**9 - 1)


@pytest.mark.parametrize("others", [0, 1, 100])
def test_a_listing_tells_the_same_of_files_whether_their_inodes_lie_side_by_side_or_apart(bench: Bench, others: int
                                                                                          ) -> None:
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/d", mode=0o755))
    made = {}
    for number in (3, 1, 2):
        made[b"%d" % number] = bench.create(b"/d/%d" % number, uid=number).inode
        for other in range(others):
            bench.create(b"/%d.%d" % (number, other))
    reply = bench.list(pb.ListRequest(path=b"/d", columns=True, statuses=True))
    assert dict(zip(reply.names, reply.inodes, strict=True)) == made
    assert [(each[0], each[11]) for each in STATUS.iter_unpack(reply.statuses)] == [
        (made[b"%d" % number], number) for number in (1, 2, 3)]


def test_a_listing_in_columns_goes_on_after_a_name(bench: Bench) -> None:
    for number in range(5):
        bench.create(b"/f%d" % number)
    page = bench.list(pb.ListRequest(path=b"/", after=b"f1", limit=2, columns=True))
    assert (list(page.names), page.more) == ([b"f2", b"f3"], True)
    page = bench.list(pb.ListRequest(path=b"/", after=b"f3", limit=2, columns=True))
    assert (list(page.names), page.more) == ([b"f4"], False)


def test_a_directory_of_long_symbolic_links_is_listed_in_answers_that_fit_into_a_frame(bench: Bench) -> None:
    for number in range(1000):
        bench.service.posix.make_symbolic_link(pb.MakeSymbolicLinkRequest(path=b"/link%03d" % number,
                                                                          target=b"t" * 1100))
    names: list[bytes] = []
    more = True
    while more:
        reply = bench.list(pb.ListRequest(path=b"/", after=names[-1] if names else b""))
        assert reply.entries
        assert reply.ByteSize() < MAX_FRAME_BYTES
        names += [entry.name for entry in reply.entries]
        more = reply.more
    assert names == [b"link%03d" % number for number in range(1000)]


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("lookup", pb.LookupRequest(), InvalidArgument, "path"),
    ("lookup", pb.LookupRequest(path=b"/f", inode=2), InvalidArgument, "path"),
    ("lookup", pb.LookupRequest(path=b"f"), InvalidName, "path"),
    ("lookup", pb.LookupRequest(path=b"/a/../f"), InvalidName, "path"),
    ("lookup", pb.LookupRequest(path=b"/a\0"), InvalidName, "path"),
    ("lookup", pb.LookupRequest(path=b"/" + b"n" * 300), NameTooLong, "path"),
    ("lookup", pb.LookupRequest(path=b"/n" * 2049), NameTooLong, "path"),
    ("list", pb.ListRequest(path=b""), InvalidName, "path"),
    ("list", pb.ListRequest(path=b"/", after=b"a/b"), InvalidArgument, "after"),
    ("list", pb.ListRequest(path=b"/", after=b"n" * 256), NameTooLong, "after"),
    ("create", pb.CreateRequest(path=b"/x/"), InvalidName, "path"),
    ("create", pb.CreateRequest(path=b"/x", mode=0o100644), InvalidArgument, "mode"),
    ("create", pb.CreateRequest(path=b"/x", uid=2**32 - 1), InvalidArgument, "uid"),
    ("create", pb.CreateRequest(path=b"/x", gid=2**32 - 1), InvalidArgument, "gid"),
    ("create", pb.CreateRequest(path=b"/x", replication=17), InvalidArgument, "replication"),
    ("create", pb.CreateRequest(path=b"/x", chunk_size=1), InvalidArgument, "chunk_size"),
    ("create", pb.CreateRequest(path=b"/x", chunk_size=2**63), InvalidArgument, "chunk_size"),
    ("create", pb.CreateRequest(path=b"/x", client_host="a\nb"), InvalidArgument, "client_host"),
    ("create", pb.CreateRequest(path=b"/x", client_host="h" * 300), InvalidArgument, "client_host"),
    ("create", pb.CreateRequest(path=b"/x", replicas=["d0", "a\nb"]), InvalidArgument, r"replicas\[1\]"),
    ("create", pb.CreateRequest(path=b"/x", replicas=["d0", "d0"]), InvalidArgument, "replicas"),
    ("create", pb.CreateRequest(path=b"/x", replicas=["d0"], replication=2), InvalidArgument, "replication"),
    ("create", pb.CreateRequest(path=b"/x", replicas=[f"d{number}" for number in range(17)]), InvalidArgument,
     "replicas"),
    ("make_directory", pb.MakeDirectoryRequest(path=b"/.."), InvalidName, "path"),
    ("make_directory", pb.MakeDirectoryRequest(path=b"/x", mode=2**32 - 1), InvalidArgument, "mode"),
    ("remove", pb.RemoveRequest(path=b"//"), InvalidName, "path"),
    ("rename", pb.RenameRequest(source=b"/f", destination=b"g"), InvalidName, "destination"),
    ("rename", pb.RenameRequest(source=b"", destination=b"/g"), InvalidName, "source"),
    ("set_attributes", pb.SetAttributesRequest(path=b"/f", mode=0o10000), InvalidArgument, "mode"),
    ("set_attributes", pb.SetAttributesRequest(path=b"/f", uid=2**32 - 1), InvalidArgument, "uid"),
    ("truncate", pb.TruncateRequest(path=b"/f", client_host="\0"), InvalidArgument, "client_host"),
    ("commit", pb.CommitRequest(inode=0, file_id=UUID), InvalidArgument, "inode"),
    ("commit", pb.CommitRequest(inode=2, file_id="x"), InvalidArgument, "file_id"),
    ("commit", pb.CommitRequest(inode=2, file_id=UUID.upper()), InvalidArgument, "file_id"),
    ("commit", pb.CommitRequest(inode=2, file_id=UUID, size=2**63), InvalidArgument, "size"),
    ("dataservers.change_replicas", pb.ChangeReplicasRequest(inode=2, file_id=UUID, epoch=1, dataserver_id="d0",
                                                 remove=["d0", "a\nb"]), InvalidArgument, r"remove\[1\]"),
    ("dataservers.change_replicas", pb.ChangeReplicasRequest(inode=2, file_id=UUID, dataserver_id="d0"),
     InvalidArgument, "epoch"),
    ("dataservers.change_replicas", pb.ChangeReplicasRequest(inode=2, file_id=UUID, epoch=1, dataserver_id="never"),
     InvalidArgument, "no dataserver 'never'"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(), InvalidArgument, "server.dataserver_id"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d" * 201, host="h", port=1)),
     InvalidArgument, "server.dataserver_id"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d9", port=1)), InvalidArgument,
     "server.host"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d9", host="h")), InvalidArgument,
     "server.port"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=pb.Replica(dataserver_id="d9", host="h", port=65536)),
     InvalidArgument, "server.port"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=server(1), capacity_bytes=1, available_bytes=2),
     InvalidArgument, "available_bytes"),
    ("dataservers.heartbeat", pb.HeartbeatRequest(server=server(1), deleted=["x"]), InvalidArgument, r"deleted\[0\]"),
]


@pytest.mark.parametrize(("method", "request_message", "kind", "field"), BAD)
def test_a_bad_request_is_refused_naming_the_field_and_changes_nothing(
        bench: Bench, method: str, request_message: Any, kind: type[Exception], field: str) -> None:
    bench.create()
    before = list(bench.store.iterate(b""))
    with pytest.raises(kind, match=f"^{field}[: ]"):
        attrgetter(method)(bench.service)(request_message)
    assert list(bench.store.iterate(b"")) == before


@pytest.mark.parametrize("bad", [{"replication": 0}, {"replication": 17}, {"chunk_size_bytes": 0},
                                 {"chunk_size_bytes": 1 << 41}, {"deletion_grace_seconds": -1},
                                 {"deletion_grace_seconds": float("nan")}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Settings(**bad)


def test_a_restarted_nameserver_knows_files_dataservers_and_pending_deletions(bench: Bench) -> None:
    kept, removed = bench.create(b"/kept"), bench.create(b"/removed")
    bench.service.remove(pb.RemoveRequest(path=b"/removed"))
    bench.service = NameserverService(
        bench.store, Settings(), generator=random.Random(2), clock_ns=lambda: int(bench.now_seconds * 1e9),
        clock_seconds=lambda: bench.now_seconds)
    assert bench.lookup(b"/kept") == kept
    bench.now_seconds += 61
    for number in range(4):
        bench.beat(number)
    assert list(bench.beat(int(ids(removed)[0][1:])).delete) == [removed.file_id]


def test_a_writer_is_told_what_room_a_quota_leaves(bench: Bench) -> None:
    assert not bench.create(b"/free").HasField("room")
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/q", mode=0o755))
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/q", max_bytes=100))
    attributes = bench.create(b"/q/f")
    assert attributes.room == 100
    assert bench.commit(attributes, 30).room == 70
    assert bench.lookup(b"/q/f").room == 70
    assert bench.commit(attributes, 130).room == 0


def test_what_was_there_before_a_quota_is_counted_with_the_heartbeats(bench: Bench) -> None:
    bench.service.make_directory(pb.MakeDirectoryRequest(path=b"/q", mode=0o755))
    for number in range(600):
        bench.create(b"/q/%d" % number)
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/q", max_files=1000))
    assert bench.service.quota.quotas(pb.QuotasRequest(path=b"/q")).quotas[0].counting
    bench.restart()
    bench.beat(0)
    bench.beat(1)
    shown = bench.service.quota.quotas(pb.QuotasRequest()).quotas
    assert [(record.path, record.used_files, record.counting) for record in shown] == [(b"/q", 601, False)]
    bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/q"))
    assert not bench.service.quota.quotas(pb.QuotasRequest(path=b"/q")).quotas


def test_limits_of_a_quota_that_make_no_sense_are_refused_by_name(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match="max_bytes"):
        bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/", max_bytes=2**63))
    with pytest.raises(InvalidArgument, match="max_files"):
        bench.service.quota.set_quota(pb.SetQuotaRequest(path=b"/", max_files=0))
    with pytest.raises(InvalidName, match="path"):
        bench.service.quota.quotas(pb.QuotasRequest(path=b"a"))
