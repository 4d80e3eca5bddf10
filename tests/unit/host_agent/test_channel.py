"""The channel's datagrams: what is sent arrives as it was, and nothing altered, replayed or foreign is believed."""

from __future__ import annotations

import hmac
from hashlib import sha256
from ipaddress import IPv4Address
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.coflow import Flow
from speedwell.coflow.report import MAC_BYTES
from speedwell.host_agent.channel import (
    MAX_BACKLOGS,
    MAX_BPS,
    MAX_DATAGRAM_BYTES,
    MAX_FLOWS,
    MAX_TURNS,
    Backlog,
    BacklogReport,
    Directive,
    FlowClass,
    FlowClasses,
    Message,
    Registration,
    Slice,
    Turns,
    Welcome,
    agent_key,
    agent_of,
    decode,
    encode,
)
from speedwell.host_agent.errors import InvalidDatagram
from speedwell.host_agent.session import MAX_OFFERS, AgentEnd, SchedulerEnd

MASTER = b"m" * 32
AGENT, OTHER = "10.0.0.1", "10.0.0.2"
KEY = agent_key(MASTER, AGENT)
NUMBERS = st.integers(1, (1 << 64) - 1)
COUNTS = st.integers(0, (1 << 64) - 1)
RATES = st.integers(0, MAX_BPS)
ADDRESSES = st.integers(0, (1 << 32) - 1).map(lambda number: str(IPv4Address(number)))
HOSTS = st.integers(1, (1 << 24) - 2).map(lambda number: str(IPv4Address((10 << 24) + number)))
PORTS = st.integers(1, 65535)


@st.composite
def slices(draw: st.DrawFn) -> tuple[Slice, ...]:
    lengths = draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 40_000)), max_size=4))
    ends = [0, *accumulate(gap + duration for gap, duration in lengths)]
    return tuple(Slice(end + gap, duration, draw(RATES)) for end, (gap, duration) in zip(ends, lengths, strict=False))


NONCES = st.binary(min_size=16, max_size=16)
FLOWS = st.builds(Flow, HOSTS, HOSTS, PORTS, PORTS, st.sampled_from([6, 17])).filter(
    lambda flow: flow.source != flow.destination)
TURNS = st.builds(Turns, ADDRESSES, st.integers(0, 120_000), slices())
DIRECTIVES = st.builds(Directive, ADDRESSES, NUMBERS, NUMBERS, st.lists(
    TURNS, max_size=MAX_TURNS, unique_by=lambda each: each.destination).map(tuple))
CLASSES = st.builds(FlowClasses, ADDRESSES, NUMBERS, NUMBERS, st.lists(
    st.builds(FlowClass, FLOWS, st.integers(0, 7), RATES), min_size=1, max_size=MAX_FLOWS,
    unique_by=lambda each: each.flow).map(tuple))
REPORTS = st.builds(BacklogReport, ADDRESSES, NUMBERS, NUMBERS, COUNTS, st.lists(
    st.builds(Backlog, ADDRESSES, COUNTS, COUNTS, COUNTS), max_size=MAX_BACKLOGS,
    unique_by=lambda each: each.destination).map(tuple))
MESSAGES = st.one_of(st.builds(Registration, ADDRESSES, NONCES, st.integers(1, MAX_BPS)),
                     st.builds(Welcome, ADDRESSES, NUMBERS, NONCES, st.integers(1, 1_000_000)),
                     DIRECTIVES, CLASSES, REPORTS)
ONE = Directive(AGENT, 5, 9, (Turns("10.0.1.1", 30_000, (Slice(0, 10_000), Slice(20_000, 10_000, 8_000_000))),))


def signed(message: bytes) -> bytes:
    return message + hmac.digest(KEY, message, sha256)[:MAC_BYTES]


@given(MESSAGES)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    datagram = encode(message, KEY)
    assert decode(datagram, KEY) == message and agent_of(datagram) == message.agent
    assert len(datagram) <= MAX_DATAGRAM_BYTES <= 1472


def test_the_bytes_are_where_the_documentation_says() -> None:
    datagram = encode(ONE, KEY)
    assert datagram[:8] == b"SPHA\x01\x03\x00\x01" and datagram[8:12] == bytes([10, 0, 0, 1])
    assert [int.from_bytes(datagram[at:at + 8]) for at in (12, 20)] == [5, 9]
    assert datagram[28:40] == bytes([10, 0, 1, 1]) + (30_000).to_bytes(4) + b"\x02\0\0\0"
    assert datagram[56:72] == (20_000).to_bytes(4) + (10_000).to_bytes(4) + (8_000_000).to_bytes(8)
    assert datagram[72:] == hmac.digest(KEY, datagram[:72], sha256)[:16]


@given(MESSAGES, st.data())
def test_an_altered_datagram_is_refused(message: Message, data: st.DataObject) -> None:
    datagram = bytearray(encode(message, KEY))
    datagram[data.draw(st.integers(0, len(datagram) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidDatagram):
        decode(bytes(datagram), KEY)


@given(st.binary(max_size=2 * MAX_DATAGRAM_BYTES))
def test_no_bytes_from_anywhere_get_past_or_raise_anything_else(datagram: bytes) -> None:
    for attempt in (datagram, b"SPHA\x01" + datagram):
        with pytest.raises(InvalidDatagram):
            decode(attempt, KEY)


@given(st.integers(0, 7), st.integers(0, 80), st.binary(max_size=300))
def test_not_even_with_our_key_is_nonsense_believed(kind: int, count: int, body: bytes) -> None:
    datagram = signed(b"SPHA\x01" + bytes([kind]) + count.to_bytes(2) + body)
    try:
        message = decode(datagram, KEY)
    except InvalidDatagram:
        return
    assert encode(message, KEY) == datagram


@pytest.mark.parametrize("wrong", [
    Directive(AGENT, 1, 1, (Turns("10.0.1.1", 30_000, (Slice(0, 10_000), Slice(5_000, 10_000))),)),
    Directive(AGENT, 1, 1, (Turns("10.0.1.1", 30_000, (Slice(0, 0),)),)),
    Directive(AGENT, 1, 1, (Turns("10.0.1.1", 1), Turns("10.0.1.1", 2))),
    Directive(AGENT, 0, 1, ()),
    Directive("here", 1, 1, ()),
    Directive(AGENT, 1, 1, (Turns("10.0.1.1", 10_000_001),)),
    Registration(AGENT, b"short", 1),
    FlowClasses(AGENT, 1, 1, (FlowClass(Flow(AGENT, OTHER, 1, 2), 8),)),
    FlowClasses(AGENT, 1, 1, (FlowClass(Flow(AGENT, AGENT, 1, 2), 0),)),
    FlowClasses(AGENT, 1, 1, ()),
])
def test_what_makes_no_sense_is_not_sent(wrong: Message) -> None:
    with pytest.raises(InvalidDatagram):
        encode(wrong, KEY)


def test_the_key_of_one_agent_does_not_speak_for_another() -> None:
    with pytest.raises(InvalidDatagram) as refused:
        decode(encode(ONE, agent_key(MASTER, OTHER)), KEY)
    assert refused.value.reason == "unauthentic"


# --- both ends ---


def joined(epoch: int = 7) -> tuple[AgentEnd, SchedulerEnd]:
    agent, scheduler = AgentEnd(AGENT, KEY, 20_000_000), SchedulerEnd(MASTER, 10_000)
    join(agent, scheduler, epoch)
    return agent, scheduler


def join(agent: AgentEnd, scheduler: SchedulerEnd, epoch: int, now: float = 0.0) -> None:
    welcome = scheduler.welcome(registered(agent, scheduler, epoch), epoch, now)
    assert welcome is not None and isinstance(agent.take(welcome), Welcome)
    assert scheduler.take(agent.report(0, ())) is not None


def test_a_directive_is_believed_once() -> None:
    agent, scheduler = joined()
    first, second = scheduler.directive(AGENT, ONE.turns), scheduler.directive(AGENT, ())
    assert agent.take(second) == Directive(AGENT, 7, 2, ())
    assert agent.take(second) is None and agent.take(first) is None
    assert agent.refused == {"replayed": 2}
    assert agent.slice_microseconds == 10_000


def test_a_directive_of_an_earlier_epoch_is_foreign() -> None:
    agent, scheduler = joined()
    old = scheduler.directive(AGENT, ONE.turns)
    join(agent, scheduler, 8)
    assert agent.take(old) is None
    assert agent.refused == {"foreign": 1}


def test_a_welcome_answers_one_registration_only() -> None:
    agent, scheduler = AgentEnd(AGENT, KEY, 1), SchedulerEnd(MASTER, 10_000)
    registration = scheduler.take(agent.register(b"1" * 16))
    assert isinstance(registration, Registration)
    welcome = scheduler.welcome(registration, 7, 0.0)
    assert welcome is not None
    agent.register(b"2" * 16)
    assert agent.take(welcome) is None
    assert not agent.is_registered
    assert agent.refused == {"replayed": 1}


def registered(agent: AgentEnd, scheduler: SchedulerEnd, nonce: int) -> Registration:
    registration = scheduler.take(agent.register(nonce.to_bytes(16)))
    assert isinstance(registration, Registration)
    return registration


def test_a_replayed_registration_changes_nothing_for_the_agent_that_is_there() -> None:
    agent, scheduler = AgentEnd(AGENT, KEY, 1), SchedulerEnd(MASTER, 10_000)
    registration = registered(agent, scheduler, 1)
    welcome = scheduler.welcome(registration, 1, 0.0)
    assert welcome is not None and agent.take(welcome) is not None
    for again in range(2, 4 * MAX_OFFERS):
        assert scheduler.welcome(registration, again, again) == welcome
    assert scheduler.take(agent.report(3, (Backlog(OTHER, 1, 2, 3),))) is not None
    assert agent.take(scheduler.directive(AGENT, ())) is not None


def test_an_offer_keeps_its_place_for_a_second_whatever_else_is_replayed() -> None:
    agent, scheduler = AgentEnd(AGENT, KEY, 1), SchedulerEnd(MASTER, 10_000)
    replayed = [registered(agent, scheduler, number) for number in range(1, 2 * MAX_OFFERS)]
    welcome = scheduler.welcome(registered(agent, scheduler, 99), 99, 10.0)
    assert welcome is not None and agent.take(welcome) is not None
    answers = [scheduler.welcome(each, 100 + number, 10.9) for number, each in enumerate(replayed)]
    assert [answer is not None for answer in answers] == [True] * (MAX_OFFERS - 1) + [False] * MAX_OFFERS
    assert scheduler.refused == {"crowded": MAX_OFFERS}
    assert scheduler.welcome(replayed[-1], 200, 11.0) is not None
    assert scheduler.take(agent.report(0, ())) is None
    join(agent, scheduler, 300, 12.0)


def test_a_report_is_believed_once_and_of_a_registered_agent_only() -> None:
    agent, scheduler = joined()
    report = agent.report(0, ())
    assert scheduler.take(report) is not None and scheduler.take(report) is None
    scheduler.forget(AGENT)
    assert scheduler.take(agent.report(0, ())) is None
    with pytest.raises(InvalidDatagram):
        scheduler.directive(AGENT, ())
    assert scheduler.refused == {"replayed": 1, "foreign": 1}


def test_neither_end_believes_its_own_words_or_those_for_another() -> None:
    agent, scheduler = joined()
    assert agent.take(agent.report(0, ())) is None
    assert scheduler.take(scheduler.directive(AGENT, ())) is None
    assert AgentEnd(OTHER, KEY, 1).take(scheduler.directive(AGENT, ())) is None
    assert agent.refused == scheduler.refused == {"foreign": 1}


def test_classes_and_directives_do_not_make_each_other_late() -> None:
    agent, scheduler = joined()
    classes = scheduler.flow_classes(AGENT, (FlowClass(Flow(AGENT, OTHER, 1, 2), 0, 1_000_000),))
    assert agent.take(scheduler.directive(AGENT, ())) is not None
    assert isinstance(agent.take(classes), FlowClasses)
