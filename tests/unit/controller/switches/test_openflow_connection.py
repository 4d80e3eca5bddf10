"""Whatever a switch sends or does not read, the controller lives, serves the others and counts it."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryu.lib import hub
from ryu.ofproto import ofproto_parser, ofproto_v1_3

from speedwell.controller.application import Datapath
from speedwell.controller.errors import SwitchTimedOut
from speedwell.controller.leadership import Leadership
from speedwell.controller.loops import Loops
from speedwell.controller.switches.connection import MAX_PORTS, SEND_SECONDS, SwitchConnection, hand_over
from speedwell.controller.switches.shapes import BadMessage, check
from tests.unit.controller.controller_process import Process, controller_process
from tests.unit.controller.fake_switch import FakeDatapath
from tests.unit.controller.openflow_peer import HEADER, Peer, corpus, message, multipart, port
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated
from tests.waiting import wait_until

SEED = int(os.environ.get("SPEEDWELL_SEED", "1"))
CORPUS = corpus(FakeDatapath(9))
ENDLESS = [
    multipart(ofproto_v1_3.OFPMP_METER_CONFIG, bytes(24)), multipart(ofproto_v1_3.OFPMP_GROUP_DESC, bytes(24)),
    multipart(ofproto_v1_3.OFPMP_GROUP_DESC, struct.pack("!HBxI", 24, 0, 1) + bytes(16)),
    multipart(ofproto_v1_3.OFPMP_METER, bytes(40)), message(ofproto_v1_3.OFPT_HELLO, bytes(8)),
    multipart(ofproto_v1_3.OFPMP_TABLE_FEATURES, bytes(64)),
    message(ofproto_v1_3.OFPT_QUEUE_GET_CONFIG_REPLY, bytes(8) + struct.pack("!IIH6x", 1, 1, 32) + bytes(16)),
]
"""Messages over which Ryu's parser goes round for ever: elements of no length."""


def mutated(data: bytes, random: Random) -> bytes:
    """A message with some bytes changed, cut off or put in, whose header gives its true length, mostly."""
    body = bytearray(data)
    for _ in range(random.randint(1, 4)):
        match random.randrange(5):
            case 0:
                body[random.randrange(4, len(body))] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
            case 1 if len(body) > 12:
                del body[random.randrange(8, len(body)):]
            case 2:
                at = random.randrange(8, len(body) + 1)
                body[at:at] = random.randbytes(random.randrange(1, 9))
            case 3 if len(body) > 12:
                at = random.randrange(8, len(body) - 2)
                body[at:at + 2] = struct.pack("!H", random.choice([0, 1, 4, 7, 8, len(body), 0xFFFF]))
            case 4 if random.random() < 0.2:
                body[random.randrange(2)] = random.randrange(40)
    if random.random() < 0.98:
        struct.pack_into("!H", body, 2, len(body))
    return bytes(body)


@contextmanager
def time_limit() -> Iterator[None]:
    """A parser that goes round for ever fails the test instead of stopping it: after ten seconds of its own time,
    as a busy machine takes long for nothing."""
    def expired(*_: Any) -> None:
        pytest.fail("the parser does not end")

    before = signal.signal(signal.SIGVTALRM, expired)
    signal.setitimer(signal.ITIMER_VIRTUAL, 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def parse(data: bytes) -> Any:
    """As `SwitchConnection` does. Raises BadMessage, or what Ryu raises."""
    checked = bytearray(data)
    check(checked)
    version, *rest = ofproto_parser.header(checked)
    return ofproto_parser._MSG_PARSERS[version](FakeDatapath(9), version, *rest, bytes(checked))


def test_every_right_message_passes_and_means_the_same() -> None:
    for data in CORPUS:
        if data[1] == ofproto_v1_3.OFPT_PACKET_IN:
            continue        # `PacketIns` reads those itself
        assert type(parse(data)).__name__.startswith("OFP")
    flow, *_ = next(parse(data) for data in CORPUS if data[1] == 19 and data[9] == 1).body
    kinds = [type(action).__name__ for action in flow.instructions[1].actions]
    assert kinds == ["OFPActionPushMpls", "OFPActionSetField", "OFPActionGroup", "NXActionRegMove",
                     "NXActionUnknown", "OFPActionOutput"]


@pytest.mark.parametrize("data", ENDLESS)
def test_a_message_that_ryu_would_parse_for_ever_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        parse(data)


@given(st.randoms(use_true_random=False))
def test_what_passes_is_parsed_to_its_end(random: Random) -> None:
    for data in CORPUS:
        changed = mutated(data, random)
        try:
            with time_limit():
                parse(changed)
        except Exception as error:
            assert not isinstance(error, MemoryError | RecursionError)


# --- a connection that is not read ---


class BackedUp(SwitchConnection):
    """A connection as Ryu makes it, whose queue nobody empties."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_parser

    def __init__(self) -> None:
        self.id = 7
        self.state = None
        self._leadership = Leadership()
        self.send_q = hub.Queue(16)
        self._send_q_sem = hub.BoundedSemaphore(16)


def test_sending_to_a_switch_that_does_not_read_ends_in_time() -> None:
    def scenario(hub: SimulatedHub) -> None:
        switch = BackedUp()
        for _ in range(16):
            assert not switch.is_backed_up and switch.send(b"x")
        assert switch.is_backed_up
        assert not hand_over(switch, SimpleNamespace())
        begin = hub.now
        waiting = [eventlet.spawn(switch.send, b"x") for _ in range(3)]
        for each in waiting:
            with pytest.raises(SwitchTimedOut, match="0000000000000007"):
                each.wait()
        assert hub.now - begin == pytest.approx(SEND_SECONDS)
        late = eventlet.spawn(switch.send, b"late")
        eventlet.sleep(1)
        switch.send_q.get()
        switch._send_q_sem.release()
        assert late.wait() is True

    run_simulated(scenario)


def test_what_waited_for_room_goes_before_what_comes_when_there_is_some() -> None:
    switch = BackedUp()
    left: list[bytes] = []

    def take(buffer: bytes) -> int:
        left.append(buffer)
        return len(buffer)

    def empty_queue() -> None:
        while True:
            take(switch.send_q.get()[0])
            switch._send_q_sem.release()

    switch.socket = SimpleNamespace(fd=SimpleNamespace(send=take))
    for _ in range(16):
        switch.send(b"x")
    eventlet.spawn(switch.send, b"first")
    eventlet.sleep(0)
    emptying = eventlet.spawn(empty_queue)
    told: list[bool] = []
    Loops().soon(lambda: told.append(switch.is_backed_up))
    eventlet.spawn(switch.send, b"second")
    wait_until(lambda: eventlet.sleep(0) or b"second" in left, 5, "the second message does not leave")
    assert left[16:] == [b"first", b"second"] and told == [True]
    emptying.kill()


def test_ryu_alone_would_wait_for_ever() -> None:
    """What the bound is for: this fails when Ryu gets one of its own."""
    def scenario(hub: SimulatedHub) -> None:
        switch = BackedUp()
        for _ in range(16):
            Datapath.send(switch, b"x")
        stuck = eventlet.spawn(Datapath.send, switch, b"x")
        eventlet.sleep(10 * SEND_SECONDS)
        assert not stuck.dead

    run_simulated(scenario)


# --- the real process ---


@pytest.fixture(name="process", scope="module")
def _process() -> Iterator[Process]:
    with controller_process("--poll-interval-seconds", "0.2") as process:
        yield process


@pytest.fixture(name="good")
def _good(process: Process) -> Iterator[Peer]:
    peer = Peer(process.openflow, 1)
    peer.join()
    yield peer
    peer.close()


def served(peer: Peer) -> None:
    """The controller answers an echo of this switch and goes on asking it."""
    peer.asked.clear()
    peer.send(message(ofproto_v1_3.OFPT_ECHO_REQUEST, b"there?", xid=77))
    peer.answer(lambda: (ofproto_v1_3.OFPT_ECHO_REPLY, 77) in peer.asked)


@pytest.mark.parametrize("data", ENDLESS)
def test_a_switch_that_sends_elements_of_no_length_holds_nobody_up(process: Process, good: Peer, data: bytes) -> None:
    bad = Peer(process.openflow, 2)
    if data[1] != ofproto_v1_3.OFPT_HELLO:
        bad.join()
    before = process.metric("speedwell_openflow_bad_messages_total")
    bad.send(data)
    served(good)
    assert process.metric("speedwell_openflow_bad_messages_total") > before
    bad.close()
    assert process.get("/v1/health")["troubles"] == []


def test_mutated_messages_harm_nobody_and_are_counted(process: Process, good: Peer) -> None:
    print(f"SPEEDWELL_SEED={SEED}")
    random = Random(SEED)
    before = process.metric("speedwell_openflow_bad_messages_total")
    for number in range(12):
        bad = Peer(process.openflow, 100 + number)
        bad.join()
        for _ in range(120):
            xid = random.choice([random.getrandbits(32), *(xid for _, xid in bad.asked[-8:])])
            data = bytearray(mutated(random.choice(CORPUS), random))
            data[4:8] = xid.to_bytes(4, "big")
            try:
                bad.send(bytes(data))
                if random.random() < 0.1 and not bad.answer_once(0.001):
                    break
            except OSError:
                break
        served(good)
        bad.close()
    assert process.metric("speedwell_openflow_bad_messages_total") > before + 100
    served(good)
    assert process.get("/v1/health")["troubles"] == [], process.log[-3000:]


def test_replies_that_are_wrong_cut_off_or_never_end_stop_nothing(process: Process, good: Peer) -> None:
    print(f"SPEEDWELL_SEED={SEED}")
    random = Random(SEED)
    bad = Peer(process.openflow, 200)
    bad.join()

    def reply(kind: int, request: bytes, xid: int) -> bytes | None:
        right = bad.right_reply(kind, request, xid)
        if right is None or kind == ofproto_v1_3.OFPT_ECHO_REQUEST:
            return right
        return random.choice([right, mutated(right, random), right[:4] + b"\0\0\0\1" + right[8:], b"",
                              right[:10] + b"\0\1" + right[12:] if kind == 18 else right])

    bad.reply = reply
    for _ in range(200):
        assert good.answer_once(0.001), "a switch that is silent for some seconds is given up, so this one answers"
        if not bad.answer_once(0.02):
            bad.close()
            bad = Peer(process.openflow, 200)
            bad.join()
            bad.reply = reply
    served(good)
    bad.close()
    assert process.get("/v1/health")["troubles"] == [], process.log[-3000:]


def test_echoes_are_asked_only_of_a_switch_that_answers_nothing_else_and_it_is_given_up(
        tmp_path: Path) -> None:
    config = tmp_path / "controller.toml"
    config.write_text("echo_interval_seconds = 0.5\necho_misses = 2\n")
    with controller_process("--poll-interval-seconds", "0.1", "--config", str(config)) as process:
        peer = Peer(process.openflow, 1)
        peer.join()
        peer.asked.clear()
        statistics = ofproto_v1_3.OFPT_MULTIPART_REQUEST
        peer.answer(lambda: [kind for kind, _ in peer.asked].count(statistics) >= 30)
        echoes = [kind for kind, _ in peer.asked].count(ofproto_v1_3.OFPT_ECHO_REQUEST)
        assert echoes <= 1      # the one with which it began
        peer.reply = lambda kind, request, xid: None
        peer.asked.clear()
        begin = time.monotonic()
        while peer.answer_once(0.1):
            assert time.monotonic() - begin < 20
        assert [kind for kind, _ in peer.asked].count(ofproto_v1_3.OFPT_ECHO_REQUEST) == 3
        peer.close()


def test_what_is_no_openflow_at_all_ends_that_connection_only(process: Process, good: Peer) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), HEADER.pack(4, 0, 7, 0), b"\xff" * 4096):
        stranger = Peer(process.openflow, 300)
        stranger.send(data)
        stranger.close()
    served(good)
    assert process.get("/v1/health")["troubles"] == []


def test_a_switch_with_endless_ports_gets_as_many_as_are_allowed(process: Process, good: Peer) -> None:
    bad = Peer(process.openflow, 400)
    bad.join()
    before = process.metric("speedwell_openflow_bad_messages_total")
    status = b"".join(message(ofproto_v1_3.OFPT_PORT_STATUS, bytes(8) + port(number))
                      for number in range(1, 10_001))
    for start in range(0, len(status), 80_000):
        bad.send(status[start:start + 80_000])
        bad.answer_once(0.01)
    served(bad)
    refused = process.metric("speedwell_openflow_bad_messages_total") - before
    assert refused == 10_000 - MAX_PORTS
    served(good)
    bad.close()
