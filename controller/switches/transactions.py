"""Nothing is told to be done before the switch said so: messages, a barrier behind them, and the switch's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import eventlet
from eventlet.event import Event
from eventlet.timeout import Timeout
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_handler

from speedwell.controller.errors import ControllerError, SwitchGone, SwitchRefused, SwitchTimedOut
from speedwell.controller.loops import Loops, Turns
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.wire import BARRIER_REQUEST, Packed

MESSAGES_IN_A_ROW = 128
"""After so many that are put into bytes, others have their turn."""
MAX_ELEMENTS = 1 << 20
"""More entries, meters or ports than this no switch has: such a reply is not waited for."""
BATCH_BYTES = 60_000
"""How much is handed to a connection at once, so that other messages can slip in between."""


class HasConfirmations(Protocol):
    """The network state, or anything else that carries the book of confirmations."""

    confirmations: Confirmations


class _Batch:
    """Messages on their way to one switch, and what the switch said about them."""

    def __init__(self, messages: Sequence[Any], is_question: bool) -> None:
        self.messages = messages
        self.is_question = is_question
        self.error: ControllerError | None = None
        self.body: list[Any] = []
        self.answered = Event()
        self.is_over = False
        """Whether nobody waits for it any more."""
        self.group: _Group | None = None

    def is_answered_by(self, message: Any) -> bool:
        """Whether a reply is of the kind that was asked for."""
        asked = type(self.messages[-1]).__name__.removeprefix("OFP").removesuffix("Request")
        return type(message).__name__.removeprefix("OFP").removesuffix("Reply") == asked

    def finish(self) -> None:
        if not self.answered.ready():
            self.answered.send()


class _Group:
    """Batches that share a barrier: everything that was queued for a switch in one turn of the hub."""

    def __init__(self, barrier_xid: int, batches: Iterable[_Batch]) -> None:
        self.barrier_xid = barrier_xid
        self.waiting = set(batches)
        for batch in self.waiting:
            batch.group = self


class Confirmations:
    """Which transaction ids are under way on which connection.

    `listen_to` hooks it into Ryu's OpenFlow handler itself rather than into an application's event queue: an answer
    is then never stuck behind whatever that application is doing, which may be waiting for this very answer.
    """

    def __init__(self, loops: Loops | None = None) -> None:
        self._loops = loops or Loops()
        self._batches: dict[Any, dict[int, _Batch | _Group]] = {}
        """By connection and transaction id: a message's batch, a barrier's group."""
        self._queued: dict[Any, list[_Batch]] = {}
        """What is sent when the hub comes round."""

    def listen_to(self, openflow_brick: Any) -> None:
        """Receive barrier replies and errors from Ryu's `ofp_event` application."""

        self._listen(openflow_brick, ofp_event.EventOFPBarrierReply,
                     lambda message: self.barrier_replied(message.datapath, message.xid))
        self._listen(openflow_brick, ofp_event.EventOFPErrorMsg, self._error_received)
        for reply in (ofp_event.EventOFPDescStatsReply, ofp_event.EventOFPFlowStatsReply,
                      ofp_event.EventOFPGroupDescStatsReply, ofp_event.EventOFPPortStatsReply,
                      ofp_event.EventOFPPortDescStatsReply, ofp_event.EventOFPQueueStatsReply,
                      ofp_event.EventOFPMeterConfigStatsReply, ofp_event.EventOFPMeterStatsReply,
                      ofp_event.EventOFPMeterFeaturesStatsReply):
            self._listen(openflow_brick, reply, self._part_received)

    @staticmethod
    def _listen(brick: Any, event_class: Any, receive: Callable[[Any], None]) -> None:
        def handle(event: Any) -> None:
            receive(event.msg)

        brick.register_handler(event_class, set_ev_handler(event_class, [MAIN_DISPATCHER])(handle))

    def _error_received(self, message: Any) -> None:
        ofproto = message.datapath.ofproto
        code = 0 if message.code is None else message.code      # an experimenter's error has none
        # Ryu puts the number behind the name: "OFPET_METER_MOD_FAILED(12)".
        names = ofproto.ofp_error_type_to_str(message.type), ofproto.ofp_error_code_to_str(message.type, code)
        self.refused(message.datapath, message.xid, *(name.partition("(")[0] for name in names))

    def _part_received(self, message: Any) -> None:
        batch = self._batches.get(message.datapath, {}).get(message.xid)
        if not isinstance(batch, _Batch) or not batch.is_question or not batch.is_answered_by(message):
            return
        if isinstance(message.body, list):
            batch.body += message.body
        else:
            batch.body.append(message.body)
        if len(batch.body) > MAX_ELEMENTS:
            batch.error = SwitchRefused(dpid_hex(message.datapath.id), "endless reply", type(message).__name__)
            batch.finish()
        if not message.flags & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            batch.finish()

    def barrier_replied(self, datapath: Any, xid: int) -> None:
        group = self._batches.get(datapath, {}).get(xid)
        if isinstance(group, _Group):
            for batch in group.waiting:
                batch.finish()

    def refused(self, datapath: Any, xid: int, error_type: str, error_code: str) -> None:
        batch = self._batches.get(datapath, {}).get(xid)
        if not isinstance(batch, _Batch):
            return
        refusal = SwitchRefused(dpid_hex(datapath.id), error_type, error_code)
        if batch.error is None:
            batch.error = refusal
        if isinstance(batch.error, SwitchRefused):
            batch.error.by_message[xid] = refusal
        if batch.is_question:
            batch.finish()

    def connection_ended(self, datapath: Any) -> None:
        """Everybody who waits for this connection gets SwitchGone."""
        batches = {batch for batch in self._batches.pop(datapath, {}).values() if isinstance(batch, _Batch)}
        _give_up(datapath, batches | set(self._queued.pop(datapath, ())))

    def send(self, datapath: Any, messages: Sequence[Any], timeout_seconds: float) -> None:
        """See `confirmed`."""
        self._transact(datapath, _Batch(messages, is_question=False), timeout_seconds)

    def ask(self, datapath: Any, request: Any, timeout_seconds: float) -> list[Any]:
        """See `asked`."""
        batch = _Batch([request], is_question=True)
        self._transact(datapath, batch, timeout_seconds)
        return batch.body

    def _transact(self, datapath: Any, batch: _Batch, timeout_seconds: float) -> None:
        """Have a batch sent, and wait until it is answered."""
        timeout = Timeout(timeout_seconds)
        try:
            self._prepare(datapath, batch)
            self._queue(datapath, batch)
            batch.answered.wait()
        except Timeout as expired:
            if expired is not timeout:
                raise
            raise SwitchTimedOut(dpid_hex(datapath.id), timeout_seconds) from None
        finally:
            timeout.cancel()
            self._forget(datapath, batch)
        if batch.error is not None:
            raise batch.error

    def _prepare(self, datapath: Any, batch: _Batch) -> None:
        """Put messages into bytes, each with a transaction id by which its answer is known."""
        barrier = datapath.ofproto_parser.OFPBarrierRequest
        for number, message in enumerate(batch.messages, 1):
            datapath.set_xid(message)
            message.serialize()
            # Barriers in the middle are answered too; only the last one ends the wait.
            if not isinstance(message, barrier):
                self._batches.setdefault(datapath, {})[message.xid] = batch
            if number % MESSAGES_IN_A_ROW == 0:
                eventlet.sleep(0)

    def _queue(self, datapath: Any, batch: _Batch) -> None:
        queued = self._queued.get(datapath)
        if queued is None:
            self._queued[datapath] = [batch]
            self._loops.soon(self._send_queued, datapath)
        else:
            queued.append(batch)

    def _send_queued(self, datapath: Any) -> None:
        """Send what was queued in this turn of the hub, and one barrier for all of it."""
        batches = self._queued.pop(datapath, [])
        messages = [message for batch in batches for message in batch.messages]
        confirmed = [batch for batch in batches if not batch.is_question and not batch.is_over]
        if confirmed:
            barrier = Packed(BARRIER_REQUEST, b"")
            datapath.set_xid(barrier)
            barrier.serialize()
            assert barrier.xid is not None
            self._batches.setdefault(datapath, {})[barrier.xid] = _Group(barrier.xid, confirmed)
            messages.append(barrier)
        buffers = list(_buffers(messages))
        if len(buffers) > 1 or datapath.is_backed_up:
            self._loops.spawn(self._hand_over, datapath, batches, buffers)
        else:
            self._hand_over(datapath, batches, buffers)

    def _hand_over(self, datapath: Any, batches: Sequence[_Batch], buffers: Iterable[bytes]) -> None:
        """Waits where there are several buffers, or the connection is backed up."""
        try:
            for buffer in buffers:
                if not datapath.send(buffer):
                    _give_up(datapath, batches)
                    return
        except SwitchTimedOut:
            _give_up(datapath, batches)
        except BaseException:
            _give_up(datapath, batches)
            raise

    def _forget(self, datapath: Any, batch: _Batch) -> None:
        batch.is_over = True
        pending = self._batches.get(datapath)
        if pending is None:
            return
        for message in batch.messages:
            pending.pop(message.xid, None)
        if batch.group is not None:
            batch.group.waiting.discard(batch)
            if not batch.group.waiting:
                pending.pop(batch.group.barrier_xid, None)
        if not pending:
            del self._batches[datapath]


def _give_up(datapath: Any, batches: Iterable[_Batch]) -> None:
    for batch in batches:
        batch.error = SwitchGone(dpid_hex(datapath.id))
        batch.finish()


def confirmed(state: HasConfirmations, datapath: Any, messages: Iterable[Any], timeout_seconds: float = 2.0) -> None:
    """Send messages in order, a barrier behind them, and wait until the switch has answered it.

    Blocks the calling green thread only. Raises SwitchRefused with the first OpenFlow error that any of the messages
    met (the others may have taken effect), SwitchTimedOut, or SwitchGone.
    """
    state.confirmations.send(datapath, list(messages), timeout_seconds)


def asked(state: HasConfirmations, datapath: Any, request: Any, timeout_seconds: float = 5.0) -> list[Any]:
    """Send a description or statistics request and return the bodies of all parts of its reply.

    Blocks the calling green thread only. Raises SwitchRefused, SwitchTimedOut or SwitchGone.
    """
    return state.confirmations.ask(datapath, request, timeout_seconds)


def confirmed_on_all(
    state: HasConfirmations, messages: Mapping[Any, Sequence[Any]], timeout_seconds: float = 2.0
) -> dict[Any, ControllerError]:
    """`confirmed` on several connections at once. Returns what failed, by connection; {} means all is confirmed."""
    failures: dict[Any, ControllerError] = {}
    turns = Turns()

    def send(datapath: Any, batch: Sequence[Any]) -> None:
        turns.others()
        try:
            state.confirmations.send(datapath, batch, timeout_seconds)
        except ControllerError as error:
            failures[datapath] = error

    first, *others = [(datapath, batch) for datapath, batch in messages.items() if batch] or [(None, ())]
    threads = [eventlet.spawn(send, *each) for each in others]
    if first[1]:
        send(*first)
    for thread in threads:
        thread.wait()
    return failures


def _buffers(messages: Iterable[Any]) -> Iterable[bytes]:
    """The messages on the wire, several to a buffer: one system call each would dominate a large change."""
    buffer = bytearray()
    for message in messages:
        if buffer and len(buffer) + len(message.buf) > BATCH_BYTES:
            yield bytes(buffer)
            buffer.clear()
        buffer += message.buf
    yield bytes(buffer)
