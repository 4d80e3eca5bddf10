"""Nothing is told to be done before the switch said so: messages, a barrier behind them, and the switch's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import eventlet
from eventlet.event import Event
from eventlet.timeout import Timeout
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_handler

from controller.errors import ControllerError, SwitchGone, SwitchRefused, SwitchTimedOut
from controller.network_state import dpid_hex

BATCH_BYTES = 60_000
"""How much is handed to a connection at once, so that other messages can slip in between."""


class HasConfirmations(Protocol):
    """The network state, or anything else that carries the book of confirmations."""

    confirmations: Confirmations


class _Batch:
    """Messages on their way to one switch, and what the switch said about them."""

    def __init__(self, is_question: bool) -> None:
        self.is_question = is_question
        self.error: ControllerError | None = None
        self.body: list[Any] = []
        self.answered = Event()

    def finish(self) -> None:
        if not self.answered.ready():
            self.answered.send()


class Confirmations:
    """Which transaction ids are under way on which connection.

    `listen_to` hooks it into Ryu's OpenFlow handler itself rather than into an application's event queue: an answer
    is then never stuck behind whatever that application is doing, which may be waiting for this very answer.
    """

    def __init__(self) -> None:
        self._batches: dict[Any, dict[int, _Batch]] = {}

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
        # Ryu puts the number behind the name: "OFPET_METER_MOD_FAILED(12)".
        names = ofproto.ofp_error_type_to_str(message.type), ofproto.ofp_error_code_to_str(message.type, message.code)
        self.refused(message.datapath, message.xid, *(name.partition("(")[0] for name in names))

    def _part_received(self, message: Any) -> None:
        batch = self._batches.get(message.datapath, {}).get(message.xid)
        if batch is None:
            return
        if isinstance(message.body, list):
            batch.body += message.body
        else:
            batch.body.append(message.body)
        if not message.flags & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            batch.finish()

    def barrier_replied(self, datapath: Any, xid: int) -> None:
        batch = self._batches.get(datapath, {}).get(xid)
        if batch is not None:
            batch.finish()

    def refused(self, datapath: Any, xid: int, error_type: str, error_code: str) -> None:
        batch = self._batches.get(datapath, {}).get(xid)
        if batch is None:
            return
        if batch.error is None:
            batch.error = SwitchRefused(dpid_hex(datapath.id), error_type, error_code)
        if batch.is_question:
            batch.finish()

    def connection_ended(self, datapath: Any) -> None:
        """Everybody who waits for this connection gets SwitchGone."""
        for batch in set(self._batches.pop(datapath, {}).values()):
            batch.error = SwitchGone(dpid_hex(datapath.id))
            batch.finish()

    def send(self, datapath: Any, messages: Sequence[Any], timeout_seconds: float) -> None:
        """See `confirmed`."""
        barrier = datapath.ofproto_parser.OFPBarrierRequest(datapath)
        self._transact(datapath, [*messages, barrier], timeout_seconds)

    def ask(self, datapath: Any, request: Any, timeout_seconds: float) -> list[Any]:
        """See `asked`."""
        return self._transact(datapath, [request], timeout_seconds).body

    def _transact(self, datapath: Any, messages: Sequence[Any], timeout_seconds: float) -> _Batch:
        """Send messages and wait until the last one is answered."""
        barrier = datapath.ofproto_parser.OFPBarrierRequest
        batch = _Batch(is_question=not isinstance(messages[-1], barrier))
        for message in messages:
            datapath.set_xid(message)
        # Barriers in the middle are answered too; only the last one ends the wait.
        xids = [message.xid for message in messages[:-1] if not isinstance(message, barrier)] + [messages[-1].xid]
        pending = self._batches.setdefault(datapath, {})
        pending.update(dict.fromkeys(xids, batch))
        timeout = Timeout(timeout_seconds)
        try:
            for buffer in _buffers(messages):
                if not datapath.send(buffer):
                    raise SwitchGone(dpid_hex(datapath.id))
            batch.answered.wait()
        except Timeout as expired:
            if expired is not timeout:
                raise
            raise SwitchTimedOut(dpid_hex(datapath.id), timeout_seconds) from None
        finally:
            timeout.cancel()
            for xid in xids:
                pending.pop(xid, None)
            if not pending and self._batches.get(datapath) is pending:
                del self._batches[datapath]
        if batch.error is not None:
            raise batch.error
        return batch


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

    def send(datapath: Any, batch: Sequence[Any]) -> None:
        try:
            state.confirmations.send(datapath, batch, timeout_seconds)
        except ControllerError as error:
            failures[datapath] = error

    threads = [eventlet.spawn(send, datapath, batch) for datapath, batch in messages.items() if batch]
    for thread in threads:
        thread.wait()
    return failures


def _buffers(messages: Iterable[Any]) -> Iterable[bytes]:
    """The messages on the wire, several to a buffer: one system call each would dominate a large change."""
    buffer = bytearray()
    for message in messages:
        message.serialize()
        if buffer and len(buffer) + len(message.buf) > BATCH_BYTES:
            yield bytes(buffer)
            buffer.clear()
        buffer += message.buf
    yield bytes(buffer)
