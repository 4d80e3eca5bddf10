"""What a caller is told about messages to switches, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.errors import SwitchGone, SwitchRefused, SwitchTimedOut
from speedwell.controller.loops import Loops
from speedwell.controller.switches.openflow import flow_add
from speedwell.controller.switches.transactions import Confirmations, asked, confirmed, confirmed_on_all
from speedwell.controller.tables.entries import STATIC_ENTRIES
from speedwell.controller.tables.switch_meters import METER_TROUBLE, OUT_OF_METERS
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


class Connection:
    """A switch's connection. `answer` is told of each message and may answer through `state`."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser
    is_backed_up = False

    def __init__(self, state: Any, answer: Callable[[Any, int, int], None], delay_seconds: float = 0.01,
                 number: int = 1) -> None:
        self.id = number
        self.state = state
        self.answer = answer
        self.delay_seconds = delay_seconds
        self.is_open = True
        self.buffers = 0
        self._xid = 100

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send(self, buffer: bytes) -> bool:
        self.buffers += 1
        while buffer and self.is_open:
            _, kind, length, xid = ofproto_parser.header(buffer)
            # A microsecond each: the simulated hub gives no order to what is due at the same time.
            eventlet.spawn_after(self.delay_seconds + xid / 1e6, self.answer, self, kind, xid)
            buffer = buffer[length:]
        return self.is_open


def test_what_goes_wrong_while_sending_is_told() -> None:
    def scenario(_: SimulatedHub) -> None:
        loops = Loops()
        state = SimpleNamespace(confirmations=Confirmations(loops))
        connection = Connection(state, obedient)
        connection.send = lambda buffer: 1 / 0
        with pytest.raises(SwitchGone):
            confirmed(state, connection, [flow_add(connection, STATIC_ENTRIES[0])])
        assert [trouble.name for trouble in loops.troubles()] == ["Confirmations._send_queued"]

    run_simulated(scenario)


def obedient(connection: Connection, kind: int, xid: int) -> None:
    if kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
        connection.state.confirmations.barrier_replied(connection, xid)


def refusing(connection: Connection, kind: int, xid: int) -> None:
    if kind == ofproto_v1_3.OFPT_FLOW_MOD:
        connection.state.confirmations.refused(connection, xid, "OFPET_FLOW_MOD_FAILED", "OFPFMFC_TABLE_FULL")
    obedient(connection, kind, xid)


def silent(connection: Connection, kind: int, xid: int) -> None:
    pass


@pytest.fixture(name="state")
def _state() -> Any:
    return SimpleNamespace(confirmations=Confirmations())


def some_messages(connection: Connection, repeat: int = 1) -> list[Any]:
    return [flow_add(connection, entry) for entry in STATIC_ENTRIES * repeat]


def leftovers(state: Any) -> Any:
    return state.confirmations._batches


def test_return_means_that_the_switch_answered_the_barrier(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, obedient, delay_seconds=0.7)
        begin = hub.now
        confirmed(state, connection, some_messages(connection))
        assert hub.now - begin == pytest.approx(0.7, abs=0.01)
        assert not leftovers(state)

    run_simulated(scenario)


def test_a_large_batch_leaves_in_few_buffers_and_in_order(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        seen: list[int] = []

        def answer(connection: Connection, kind: int, xid: int) -> None:
            seen.append(xid)
            obedient(connection, kind, xid)

        connection = Connection(state, answer)
        confirmed(state, connection, some_messages(connection, repeat=100))
        assert seen == list(range(101, 101 + 100 * len(STATIC_ENTRIES) + 1))
        assert connection.buffers < 5

    run_simulated(scenario)


def test_a_refusal_of_any_message_reaches_the_caller_with_the_openflow_error(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, refusing)
        with pytest.raises(SwitchRefused, match="OFPET_FLOW_MOD_FAILED") as refused:
            confirmed(state, connection, some_messages(connection))
        assert refused.value.status == 502
        assert refused.value.extensions == {"dpid": "0000000000000001", "openflow_type": "OFPET_FLOW_MOD_FAILED",
                                            "openflow_code": "OFPFMFC_TABLE_FULL"}
        assert not leftovers(state)

    run_simulated(scenario)


def test_an_error_is_told_by_its_names_alone() -> None:
    told = []
    confirmations = Confirmations()
    confirmations.refused = lambda *names: told.append(names)  # type: ignore[method-assign]
    message = SimpleNamespace(datapath=SimpleNamespace(ofproto=ofproto_v1_3), xid=7,
                              type=ofproto_v1_3.OFPET_METER_MOD_FAILED, code=ofproto_v1_3.OFPMMFC_OUT_OF_METERS)
    confirmations._error_received(message)
    assert told == [(message.datapath, 7, METER_TROUBLE, OUT_OF_METERS)]


def test_an_error_for_somebody_elses_message_is_not_the_callers(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        def answer(connection: Connection, kind: int, xid: int) -> None:
            state.confirmations.refused(connection, 7, "OFPET_FLOW_MOD_FAILED", "OFPFMFC_TABLE_FULL")
            obedient(connection, kind, xid)

        connection = Connection(state, answer)
        confirmed(state, connection, some_messages(connection))

    run_simulated(scenario)


def test_a_switch_that_does_not_answer_is_waited_for_so_long_and_no_longer(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, silent)
        begin = hub.now
        with pytest.raises(SwitchTimedOut, match=r"within 1\.5 s"):
            confirmed(state, connection, some_messages(connection), 1.5)
        assert hub.now - begin == pytest.approx(1.5)
        assert not leftovers(state)

    run_simulated(scenario)


def test_a_connection_that_ends_meanwhile_is_told_at_once(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, silent)
        eventlet.spawn_after(0.3, state.confirmations.connection_ended, connection)
        begin = hub.now
        with pytest.raises(SwitchGone):
            confirmed(state, connection, some_messages(connection))
        assert hub.now - begin == pytest.approx(0.3)
        connection.is_open = False
        with pytest.raises(SwitchGone):
            confirmed(state, connection, [])
        assert not leftovers(state)

    run_simulated(scenario)


def test_a_callers_own_timeout_stays_its_own(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, silent)
        with pytest.raises(eventlet.Timeout), eventlet.Timeout(0.2):
            confirmed(state, connection, [])
        assert not leftovers(state)

    run_simulated(scenario)


def test_several_switches_are_served_at_once_and_each_failure_is_told(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        good = [Connection(state, obedient, 0.5, number) for number in range(1, 6)]
        bad, dead = Connection(state, refusing, 0.5, 6), Connection(state, silent, 0.5, 7)
        begin = hub.now
        failures = confirmed_on_all(state, {one: some_messages(one) for one in (*good, bad, dead)}, 1.0)
        assert hub.now - begin == pytest.approx(1.0)
        assert {connection: type(error) for connection, error in failures.items()} == {
            bad: SwitchRefused, dead: SwitchTimedOut}

    run_simulated(scenario)


def part(connection: Connection, xid: int, body: list[Any], flags: int, kind: str = "GroupDesc") -> Any:
    message = getattr(ofproto_v1_3_parser, f"OFP{kind}StatsReply")(connection)
    message.xid, message.body, message.flags = xid, body, flags
    return message


def test_an_answer_of_another_kind_and_one_without_an_end_are_no_answers(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        def confused(connection: Connection, kind: int, xid: int) -> None:
            state.confirmations._part_received(part(connection, xid, [1], 0, "PortDesc"))
            state.confirmations.barrier_replied(connection, xid)

        def talkative(connection: Connection, kind: int, xid: int) -> None:
            for _ in range(20):
                state.confirmations._part_received(
                    part(connection, xid, [None] * 100_000, ofproto_v1_3.OFPMPF_REPLY_MORE))

        for answer, error in ((confused, SwitchTimedOut), (talkative, SwitchRefused)):
            connection = Connection(state, answer)
            with pytest.raises(error):
                asked(state, connection, ofproto_v1_3_parser.OFPGroupDescStatsRequest(connection, 0))
            assert not leftovers(state)

    run_simulated(scenario)


def test_an_answer_in_parts_is_put_together(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        def answer(connection: Connection, kind: int, xid: int) -> None:
            for body, flags in (([1, 2], ofproto_v1_3.OFPMPF_REPLY_MORE), ([3], 0)):
                state.confirmations._part_received(part(connection, xid, body, flags))

        connection = Connection(state, answer)
        assert asked(state, connection, ofproto_v1_3_parser.OFPGroupDescStatsRequest(connection, 0)) == [1, 2, 3]

    run_simulated(scenario)


def test_a_question_that_is_refused_is_not_waited_for(state: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        def answer(connection: Connection, kind: int, xid: int) -> None:
            state.confirmations.refused(connection, xid, "OFPET_BAD_REQUEST", "OFPBRC_BAD_MULTIPART")

        connection = Connection(state, answer)
        begin = hub.now
        with pytest.raises(SwitchRefused, match="OFPBRC_BAD_MULTIPART"):
            asked(state, connection, ofproto_v1_3_parser.OFPGroupDescStatsRequest(connection, 0))
        assert hub.now - begin < 1

    run_simulated(scenario)


def test_what_is_confirmed_in_one_turn_shares_a_barrier_and_each_hears_of_its_own_error(state: Any) -> None:
    barriers, outcomes = [], {}

    def refuse_third(connection: Connection, kind: int, xid: int) -> None:
        if kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
            barriers.append(xid)
        elif xid == 103:
            connection.state.confirmations.refused(connection, xid, "OFPET_FLOW_MOD_FAILED", "OFPFMFC_TABLE_FULL")
        obedient(connection, kind, xid)

    def ask(connection: Connection, number: int) -> None:
        try:
            confirmed(state, connection, some_messages(connection)[:1])
            outcomes[number] = None
        except SwitchRefused as error:
            outcomes[number] = error

    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, refuse_third)
        for number in range(1, 6):
            eventlet.spawn(ask, connection, number)
        eventlet.sleep(1)
        assert (len(barriers), connection.buffers) == (1, 1)
        assert [type(error).__name__ for error in outcomes.values() if error] == ["SwitchRefused"]
        assert len(outcomes) == 5 and not leftovers(state)

    run_simulated(scenario)


def test_one_that_gives_up_takes_nothing_from_those_who_share_its_barrier(state: Any) -> None:
    outcomes = []

    def ask(connection: Connection, timeout_seconds: float) -> None:
        try:
            confirmed(state, connection, some_messages(connection)[:1], timeout_seconds)
            outcomes.append("confirmed")
        except SwitchTimedOut:
            outcomes.append("timed out")

    def scenario(hub: SimulatedHub) -> None:
        connection = Connection(state, obedient, delay_seconds=1.0)
        eventlet.spawn(ask, connection, 0.5)
        eventlet.spawn(ask, connection, 2.0)
        eventlet.sleep(3)
        assert outcomes == ["timed out", "confirmed"] and not leftovers(state)

    run_simulated(scenario)
