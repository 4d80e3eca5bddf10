"""Whatever comes in a request of the nameserver is answered, or refused in words; nothing fails inside."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs import paths, tokens
from speedwell.fs.errors import IdentityError, InternalError, SpeedwellError, TokenRefused
from speedwell.fs.identity import invitations, scope
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.enrollment import Enrollment, Refused
from speedwell.fs.identity.roles import MOUNT
from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

SENDERS = (None, Peer("m", MOUNT, "1", 2e9, Scope(((1000, 1000),), ((1000, 1000),))))
ANYTHING = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9)),
                        lambda inner: st.one_of(st.lists(inner, max_size=3),
                                                st.dictionaries(st.text(max_size=5), inner, max_size=3)))
PATHS = st.sampled_from([b"/", b"/d", b"/d/f", b"/g", paths.of_inode(1), paths.of_inode(2), b"/d/../f", b"//"])
NUMBERS = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63, FieldDescriptor.CPPTYPE_UINT32: 32,
           FieldDescriptor.CPPTYPE_UINT64: 64}


def values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.cpp_type in NUMBERS:
        return st.one_of(st.integers(0, 3), st.integers(0, 2 ** NUMBERS[field.cpp_type] - 1))
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type._concrete_class, depth + 1)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.one_of(PATHS, st.binary(max_size=20))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.one_of(st.text(max_size=4), st.just("0123abcd-0000-4000-8000-00000000000a"))
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return st.floats(allow_nan=True)


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], depth: int = 0) -> Message:
    made = kind()
    fields = [field for field in kind.DESCRIPTOR.fields if depth < 3 or field.message_type is None]
    for field in draw(st.lists(st.sampled_from(fields), max_size=5, unique_by=lambda each: each.name)
                      if fields else st.just([])):
        value = values(field, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(value, max_size=3)))
        elif field.message_type is not None:
            getattr(made, field.name).CopyFrom(draw(value))
        else:
            setattr(made, field.name, draw(value))
    return made


@pytest.fixture(scope="module")
def answered() -> Requests:
    service = NameserverService(MemoryStore(), Settings(), generator=random.Random(1), clock_ns=lambda: 10**18,
                                clock_seconds=lambda: 1000.0)
    service.dataservers.heartbeat(pb.HeartbeatRequest(
        server=pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000), capacity_bytes=1000, available_bytes=500,
        term=service.provenance.term, inventory_complete=True))
    requests = Requests(service)
    for name, path in (("MakeDirectory", b"/d"), ("Create", b"/d/f")):
        requests.answer(name, getattr(pb, f"{name}Request")(path=path, mode=0o777).SerializeToString())
    return requests


def require_an_answer(answered: Requests, name: str, data: bytes, sender: Peer | None) -> None:
    try:
        answered.answer(name, data, sender)
    except InternalError:
        raise
    except SpeedwellError as error:
        assert error.message


@given(st.one_of(st.sampled_from(Requests().names), st.text(max_size=20)), st.binary(max_size=200),
       st.sampled_from(SENDERS))
def test_any_bytes_are_answered_or_refused(answered: Requests, name: str, data: bytes, sender: Peer | None) -> None:
    require_an_answer(answered, name, data, sender)


@given(st.data(), st.sampled_from(Requests().names), st.sampled_from(SENDERS))
def test_any_values_are_answered_or_refused(answered: Requests, data: st.DataObject, name: str,
                                            sender: Peer | None) -> None:
    request = data.draw(messages(getattr(pb, f"{name}Request")))
    require_an_answer(answered, name, request.SerializeToString(), sender)


@given(st.binary(max_size=60), st.text(max_size=40), st.text(max_size=20))
def test_any_bytes_are_no_token(token: bytes, file_id: str, client: str) -> None:
    with pytest.raises(TokenRefused):
        tokens.verified(token, file_id, {1: b"k" * tokens.SECRET_BYTES}, client)


@given(st.text(max_size=80), st.booleans())
def test_any_text_is_no_join_token(text: str, begins_well: bool) -> None:
    with pytest.raises(IdentityError):
        invitations.parsed(invitations._PREFIX * begins_well + text)


@pytest.fixture(scope="module")
def invited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("authority") / "identity"
    Authority.make(directory)
    return directory, str(invitations.invite(directory, "127.0.0.1:7999", "h1", [MOUNT]))


@given(st.data())
def test_any_question_to_join_is_refused_in_words(invited: tuple[Path, str], data: st.DataObject) -> None:
    directory, token = invited
    question = data.draw(st.fixed_dictionaries({}, optional={
        "token": st.one_of(ANYTHING, st.just(token)),
        "requests": st.one_of(ANYTHING, st.dictionaries(st.sampled_from(["", MOUNT, "x"]), st.one_of(
            st.text(max_size=9), st.just("-----BEGIN CERTIFICATE REQUEST-----"))))}))
    with pytest.raises((Refused, IdentityError)):
        Enrollment.join(SimpleNamespace(directory=directory), None, question)     # type: ignore[arg-type]


@given(st.text(max_size=60), st.booleans())
def test_any_text_is_no_scope_or_one_that_is_written_the_same_way(text: str, begins_well: bool) -> None:
    try:
        found = scope.parsed(scope.SCHEME * begins_well + text)
    except IdentityError:
        return
    assert scope.parsed(str(found)) == found
