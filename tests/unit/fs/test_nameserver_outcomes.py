"""A change whose request comes again, after a lost answer or a crash, is carried out once."""

import dataclasses
import random
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.errors import (
    AlreadyExists,
    InvalidArgument,
    NoSuchAttribute,
    NoSuchFile,
    NotAuthorised,
    SpeedwellError,
    Superseded,
)
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.roles import MOUNT
from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.service import outcomes
from speedwell.fs.nameserver.service.dispatch import CHANGES, Requests
from speedwell.fs.nameserver.service.outcomes import FORGET_AT_ONCE, FORGET_SECONDS, Outcomes
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch, MemoryStore, end_of_prefix
from speedwell.fs.store.journaled import HIDDEN_END

OURS, THEIRS = 7, 8
"""Two requesters."""


class Killed(BaseException):
    """The process ends here."""


class MortalStore(MemoryStore):
    """Dies with its next batch: "before" it is written or "after"."""

    dies = ""

    def write(self, batch: Batch) -> None:
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise Killed
        super().write(batch)
        if dies == "after":
            raise Killed

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """All but the outcomes, and keys that are drawn at random."""
        return [pair for pair in self.iterate(HIDDEN_END)
                if not pair[0].startswith((records.OUTCOME_PREFIX, records.TOKEN_KEYS_KEY))]

    def outcomes(self) -> int:
        return len(list(self.iterate(records.OUTCOME_PREFIX, end_of_prefix(records.OUTCOME_PREFIX))))


class Nameserver:
    """One that can be killed and started again; time passes only as a test says."""

    def __init__(self) -> None:
        self.store = MortalStore()
        self.now_seconds = 100.0
        self.now_ns = 0
        self.start()
        self.beat()

    def start(self) -> None:
        service = NameserverService(self.store, Settings(replication=1), generator=random.Random(1),
                                    clock_ns=lambda: self.now_ns, clock_seconds=lambda: self.now_seconds)
        self.requests = Requests(service)

    def beat(self) -> None:
        server = pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000)
        self.ask("Heartbeat", pb.HeartbeatRequest(server=server, capacity_bytes=1000, available_bytes=1000))

    def ask(self, name: str, request: Message, requester: int = 0, sequence: int = 0,
            sender: Peer | None = None) -> Any:
        if requester:
            request.id.requester, request.id.sequence = requester, sequence  # type: ignore[attr-defined]
        answer = self.requests.answer(name, request.SerializeToString(), sender)
        return getattr(pb, f"{name}Reply").FromString(answer)

    def result(self, name: str, request: Message, requester: int = 0, sequence: int = 0) -> Any:
        try:
            return self.ask(name, request, requester, sequence)
        except SpeedwellError as error:
            return type(error).__name__

    def names(self, path: bytes = b"/") -> list[bytes]:
        return [entry.name for entry in self.ask("List", pb.ListRequest(path=path)).entries]


@pytest.fixture
def nameserver() -> Nameserver:
    return Nameserver()


def attribute(value: bytes, **flags: bool) -> pb.SetExtendedAttributeRequest:
    return pb.SetExtendedAttributeRequest(
        path=b"/d", extended_attribute=pb.ExtendedAttribute(name=b"user.a", value=value), **flags)


PREPARED: list[tuple[str, Message]] = [
    ("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d")), ("Create", pb.CreateRequest(path=b"/f")),
    ("Create", pb.CreateRequest(path=b"/g"))]
ONE_OF_EACH: list[tuple[str, Message]] = [
    ("Create", pb.CreateRequest(path=b"/new", exclusive=True)),
    ("MakeDirectory", pb.MakeDirectoryRequest(path=b"/new")),
    ("MakeSymbolicLink", pb.MakeSymbolicLinkRequest(path=b"/new", target=b"f")),
    ("MakeSpecial", pb.MakeSpecialRequest(path=b"/new", type=pb.FIFO)),
    ("Link", pb.LinkRequest(source=b"/f", destination=b"/new")),
    ("Remove", pb.RemoveRequest(path=b"/f")),
    ("Remove", pb.RemoveRequest(path=b"/d", directory=True)),
    ("Rename", pb.RenameRequest(source=b"/f", destination=b"/new", no_replace=True)),
    ("Rename", pb.RenameRequest(source=b"/f", destination=b"/g")),
    ("Rename", pb.RenameRequest(source=b"/f", destination=b"/d", exchange=True)),
    ("SetAttributes", pb.SetAttributesRequest(path=b"/f", mode=0o600)),
    ("SetExtendedAttribute", attribute(b"1", create=True)),
    ("Truncate", pb.TruncateRequest(path=b"/f")),
]


@pytest.mark.parametrize("dies", ["", "before", "after"])
@pytest.mark.parametrize(("name", "request_"), ONE_OF_EACH, ids=lambda value: value if isinstance(value, str) else "")
def test_a_change_whose_answer_was_lost_is_done_once_and_answered_as_ever(nameserver: Nameserver, name: str,
                                                                         request_: Message, dies: str) -> None:
    for each in PREPARED:
        nameserver.ask(*each)
    nameserver.store.dies = dies
    if dies:
        with pytest.raises(Killed):
            nameserver.ask(name, request_, OURS, 1)
        nameserver.start()
    else:
        nameserver.ask(name, request_, OURS, 1)
    first = nameserver.ask(name, request_, OURS, 1)
    after = nameserver.store.pairs()
    assert nameserver.ask(name, request_, OURS, 1) == first
    assert nameserver.store.pairs() == after
    assert nameserver.store.outcomes() == 1


def test_every_change_has_an_id() -> None:
    requests = {name for name in Requests().names
                if "id" in pb.DESCRIPTOR.message_types_by_name[f"{name}Request"].fields_by_name}
    assert requests == set(CHANGES)


def test_what_others_did_since_is_not_undone_by_a_repetition(nameserver: Nameserver) -> None:
    nameserver.ask("Create", pb.CreateRequest(path=b"/a"))
    rename = pb.RenameRequest(source=b"/a", destination=b"/b")
    nameserver.ask("Rename", rename, OURS, 1)
    nameserver.ask("Rename", pb.RenameRequest(source=b"/b", destination=b"/c"), THEIRS, 1)
    nameserver.ask("Create", pb.CreateRequest(path=b"/a"), THEIRS, 2)
    nameserver.start()
    nameserver.ask("Rename", rename, OURS, 1)
    assert nameserver.names() == [b"a", b"c"]


def test_without_an_id_or_with_the_next_one_it_is_another_change(nameserver: Nameserver) -> None:
    nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d"), OURS, 1)
    with pytest.raises(AlreadyExists):
        nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d"))
    with pytest.raises(AlreadyExists):
        nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d"), OURS, 2)


def test_a_refused_change_is_decided_anew_and_one_that_was_given_up_comes_too_late(nameserver: Nameserver) -> None:
    remove = pb.RemoveRequest(path=b"/f")
    with pytest.raises(NoSuchFile):
        nameserver.ask("Remove", remove, OURS, 1)
    nameserver.ask("Create", pb.CreateRequest(path=b"/f"), THEIRS, 1)
    nameserver.ask("Remove", remove, OURS, 1)
    nameserver.ask("Create", pb.CreateRequest(path=b"/f"), THEIRS, 2)
    with pytest.raises(NoSuchAttribute):
        nameserver.ask("RemoveExtendedAttribute", pb.RemoveExtendedAttributeRequest(path=b"/f", name=b"user.a"),
                       OURS, 2)
    with pytest.raises(InvalidArgument, match="id: change 1 comes after change 2"):
        nameserver.ask("Remove", remove, OURS, 1)
    assert nameserver.names() == [b"f"]


@pytest.mark.parametrize("identity", [pb.ChangeId(requester=1), pb.ChangeId(sequence=1)])
def test_half_an_id_is_refused(nameserver: Nameserver, identity: pb.ChangeId) -> None:
    with pytest.raises(InvalidArgument, match=r"^id\."):
        nameserver.ask("Remove", pb.RemoveRequest(path=b"/f", id=identity))


def test_a_content_that_is_refused_is_deleted(nameserver: Nameserver) -> None:
    made = nameserver.ask("Create", pb.CreateRequest(path=b"/f")).attributes
    with pytest.raises(Superseded):
        nameserver.ask("Publish", pb.PublishRequest(
            inode=made.inode, base="0" * 8 + "-0000-0000-0000-" + "0" * 12, file_id=made.file_id[::-1].translate(
                str.maketrans("-", "0"))[:8] + made.file_id[8:], epoch=1,
            dataserver_id=made.replicas[0].dataserver_id))
    deleted = list(nameserver.store.iterate(records.DELETION_PREFIX, end_of_prefix(records.DELETION_PREFIX)))
    assert len(deleted) == 1


def test_the_outcomes_of_the_silent_are_forgotten(nameserver: Nameserver) -> None:
    requesters = FORGET_AT_ONCE + 10
    for requester in range(1, requesters + 1):
        nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d%d" % requester), requester, 1)
    nameserver.start()
    nameserver.now_seconds += FORGET_SECONDS
    nameserver.beat()
    nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d"), 1, 2)
    assert nameserver.store.outcomes() == requesters
    nameserver.now_seconds += 1
    nameserver.beat()
    assert nameserver.store.outcomes() == 10
    nameserver.beat()
    assert nameserver.store.outcomes() == 1
    nameserver.ask("MakeDirectory", pb.MakeDirectoryRequest(path=b"/d"), 1, 2)


# ---------------------------------------------------------------- histories

paths = st.sampled_from([b"/a", b"/b", b"/a/x", b"/b/x"])
changes = st.one_of(
    st.builds(lambda path: ("MakeDirectory", pb.MakeDirectoryRequest(path=path)), paths),
    st.builds(lambda path: ("MakeSpecial", pb.MakeSpecialRequest(path=path, type=pb.FIFO)), paths),
    st.builds(lambda path, other: ("Link", pb.LinkRequest(source=path, destination=other)), paths, paths),
    st.builds(lambda path, other, no_replace, exchange: ("Rename", pb.RenameRequest(
        source=path, destination=other, no_replace=no_replace, exchange=exchange and not no_replace)),
        paths, paths, st.booleans(), st.booleans()),
    st.builds(lambda path, directory: ("Remove", pb.RemoveRequest(path=path, directory=directory)),
              paths, st.booleans()),
    st.builds(lambda path, create: ("SetExtendedAttribute", pb.SetExtendedAttributeRequest(
        path=path, extended_attribute=pb.ExtendedAttribute(name=b"user.a", value=b"v"), create=create)),
        paths, st.booleans()))
steps = st.tuples(changes, st.sampled_from(["", "lost", "before", "after"]), st.none() | changes)


@given(st.lists(steps, max_size=25))
def test_two_clients_get_the_answers_of_a_nameserver_that_never_dies(
        history: list[tuple[tuple[str, Message], str, tuple[str, Message] | None]]) -> None:
    """Ours is interrupted, theirs comes before ours is asked again: as if each had been asked once, in the order in
    which they were carried out."""
    mortal, immortal = Nameserver(), Nameserver()
    for number, (ours, interruption, theirs) in enumerate(history, 1):
        mortal.now_ns = immortal.now_ns = number   # whatever is written, it differs from what was there
        before = mortal.store.pairs()
        answer = None
        mortal.store.dies = interruption if interruption != "lost" else ""
        try:
            answer = mortal.result(*ours, OURS, number)
        except Killed:
            mortal.start()
        mortal.store.dies = ""
        carried_out = mortal.store.pairs() != before or not interruption
        expected = immortal.result(*ours) if carried_out else None
        if theirs is not None and interruption:
            assert mortal.result(*theirs, THEIRS, number) == immortal.result(*theirs)
        if interruption:
            answer = mortal.result(*ours, OURS, number)
        assert answer == (expected if carried_out else immortal.result(*ours))
        assert mortal.store.pairs() == immortal.store.pairs()


def test_who_draws_ever_new_requesters_takes_the_place_of_their_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST_OF_A_CLIENT", 10)
    store = MortalStore()
    kept = Outcomes(store, lambda: 0.0)
    done: list[int] = []

    def change(requester: int, client: str) -> None:
        def carried_out() -> bytes:
            if requester % 2:   # the others are refused
                done.append(requester)
                batch = Batch()
                batch.put(b"key", b"value")
                kept.write(batch)
            return b"answered"
        assert kept.once(requester, 1, carried_out, client) == b"answered"

    change(1, "mount honest")
    for requester in range(100, 1100):
        change(requester, "mount greedy")
    assert len(kept._heard) == 11 and store.outcomes() == 6
    for known in (1, 1099, 1091):
        before = len(done)
        change(known, "mount honest" if known == 1 else "mount greedy")
        assert len(done) == before, "carried out again"
    kept._clock_seconds = lambda: FORGET_SECONDS + 1
    kept.forget()
    assert not kept._heard and not kept._of_client and not store.outcomes()


ALICE, BOB = Peer("alice", MOUNT, "1", 4e9), Peer("bob", MOUNT, "2", 4e9)
CAROL = Peer("carol", MOUNT, "3", 4e9, Scope(((1000, 1000),), ((1000, 1000),)))
"""The last one may act for one user."""


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("other", [BOB, CAROL], ids=str)
def test_who_knows_the_id_of_anothers_change_neither_hears_its_answer_nor_takes_its_place(
        nameserver: Nameserver, other: Peer, restarted: bool) -> None:
    made = nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, 5, ALICE)
    if restarted:
        nameserver.start()
    before = nameserver.store.pairs()
    for sequence in (4, 5, 6):
        with pytest.raises(NotAuthorised, match=r"id\.requester: it is another client's"):
            nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, sequence, other)
    assert nameserver.store.pairs() == before
    renewed = dataclasses.replace(ALICE, serial="9")
    assert nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, 5, renewed) == made


def test_who_asked_over_the_local_socket_is_answered_over_the_network_too(nameserver: Nameserver) -> None:
    made = nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, 1)
    with pytest.raises(NotAuthorised, match="another client"):
        nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, 1, CAROL)
    assert nameserver.ask("Create", pb.CreateRequest(path=b"/f", exclusive=True), OURS, 1, ALICE) == made
    made = nameserver.ask("Create", pb.CreateRequest(path=b"/g", exclusive=True), OURS, 2, ALICE)
    assert nameserver.ask("Create", pb.CreateRequest(path=b"/g", exclusive=True), OURS, 2) == made
    with pytest.raises(NotAuthorised, match="another client"):
        nameserver.ask("Create", pb.CreateRequest(path=b"/g", exclusive=True), OURS, 2, BOB)


def test_outcomes_of_requesters_that_another_nameserver_owns_are_left_to_it() -> None:
    store, now = MemoryStore(), [0.0]
    mine, others = Outcomes(store, lambda: now[0]), Outcomes(store, lambda: now[0])

    def change(book: Outcomes, requester: int) -> bytes:
        def made() -> bytes:
            batch = Batch()
            batch.put(b"x%d" % requester, b"")
            book.write(batch)
            return b"done"
        return book.once(requester, 1, made)

    change(mine, OURS)
    change(others, THEIRS)
    one = Outcomes(store, lambda: now[0], lambda requester: requester == OURS)
    now[0] = FORGET_SECONDS + 1
    one.forget()
    assert not one._heard
    assert store.get(records.outcome_key(OURS)) is None
    assert store.get(records.outcome_key(THEIRS)) is not None
