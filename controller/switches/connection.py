"""One switch's OpenFlow connection: Ryu's, with loops in which no switch can hold up the others.

Until a connection is admitted as its switch's own (`controller.topology.admission`), it can do nothing but shake
hands and answer: with a known datapath id anybody could otherwise speak in a switch's name.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import eventlet
from prometheus_client import Counter
from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from ryu.ofproto import ofproto_parser

from speedwell.controller.application import Datapath
from speedwell.controller.errors import SwitchTimedOut
from speedwell.controller.leadership import Leadership
from speedwell.controller.loops import Loops
from speedwell.controller.reader import Reader
from speedwell.controller.secure import ENDED, Door, NotAdmitted
from speedwell.controller.switches import shapes
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.packet_ins import PacketIns
from speedwell.controller.switches.replies import event_of
from speedwell.controller.switches.shapes import BadMessage
from speedwell.fs.identity.bundle import Identity, Peer
from speedwell.fs.identity.roles import SWITCH
from speedwell.fs.wire.handshakes import MOST

SEND_SECONDS = 10.0
"""How long a message may wait for room in the queue of a connection."""
READ_BYTES = 1 << 16
TURN_MESSAGES = 32
"""After so many messages of one switch the others have their turn."""
LONG_BYTES = 1 << 14
"""So do they after a message as long as this: of hundreds of entries, each of which is looked at."""
MAX_PORTS = 4096
UNTIL_ADMITTED = frozenset({shapes.HELLO, shapes.ERROR, shapes.ECHO_REQUEST, shapes.ECHO_REPLY, shapes.PORT_STATUS})
"""What a connection that has shaken hands may say before it is admitted."""
ANSWERS = frozenset({shapes.MULTIPART_REPLY, shapes.BARRIER_REPLY})
"""What only a switch says that has read a question."""
HINTS = {"plain": ": is its target ssl: and not tcp:?"}

log = logging.getLogger(__name__)


def bad_message_counter() -> Counter:
    """What `SwitchConnection` counts messages in that it drops."""
    return Counter("speedwell_openflow_bad_messages", "Messages of switches that were dropped, by what was wrong.",
                   ["problem"], registry=None)


class SwitchConnection(Datapath):
    """What it receives is checked (`controller.switches.shapes`), and dropped and counted if it is not right.

    What its handlers raise ends nothing. Sending never waits for longer than `SEND_SECONDS`. `is_admitted` is set by
    discovery once the connection is its switch's own; `target` is what the switch connected to, in its database's
    words. `peer` is whose certificate was shown at the `door`, None for a plain connection.
    """

    _has_answered = False
    """Whether it has answered a question, other than an echo, since it was looked at last."""

    def __init__(self, socket: Any, address: Any, packet_ins: PacketIns, loops: Loops, bad_messages: Counter,
                 door: Door | None = None, peer: Peer | None = None, leadership: Leadership | None = None) -> None:
        super().__init__(socket, address)
        self._leadership = leadership or Leadership()
        self.is_admitted = False
        self.peer = peer
        self._door = door
        host, port = socket.getsockname()[:2]
        protocol = "tcp" if door is None else "ssl"
        self.target = f"{protocol}:[{host}]:{port}" if ":" in host else f"{protocol}:{host}:{port}"
        self._packet_ins = packet_ins
        self._loops = loops
        self._bad_messages = bad_messages
        self._has_complained = False
        self._reader = Reader(socket)

    @property
    def label(self) -> str:
        return dpid_hex(self.id) if self.id is not None else f"at {self.address[0]}"

    # --- sending ---

    @property
    def is_backed_up(self) -> bool:
        """Whether a message would have to wait: the switch does not read, or it is on its way out."""
        return self.send_q is None or self._send_q_sem.balance <= 0 or self._is_room_taken

    @property
    def _is_room_taken(self) -> bool:
        """Whether the room that there is belongs to green threads that have waited for it."""
        return bool(self._send_q_sem.balance + self.send_q.qsize() < self.send_q.maxsize)

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Hand bytes over. False if the connection has ended, or another controller may lead now. Raises
        SwitchTimedOut if there is no room in time."""
        if self._leadership.is_deposed:
            return False
        if not close_socket and self._is_nothing_unsent:
            buf = buf[self._sent_at_once(buf):]
            if not buf:
                return True
        if not self.is_backed_up:
            return bool(super().send(buf, close_socket))
        timeout = eventlet.Timeout(SEND_SECONDS)
        try:
            return bool(super().send(buf, close_socket))
        except eventlet.Timeout as expired:
            if expired is not timeout:
                raise
            raise SwitchTimedOut(self.label, SEND_SECONDS) from None
        finally:
            timeout.cancel()

    @property
    def _is_nothing_unsent(self) -> bool:
        """Whether Ryu's loop that sends has nothing to send, and sends nothing, and nobody waits for room."""
        return self.send_q is not None and bool(
            self.send_q.getting() and self._send_q_sem.balance == self.send_q.maxsize)

    def _sent_at_once(self, buf: bytes) -> int:
        """How many bytes the system took, without another green thread's doing."""
        try:
            return int(self.socket.fd.send(buf))
        except OSError:     # no room, or the connection is lost: the loop that sends will find out
            return 0

    def send_msg(self, message: Any, close_socket: bool = False) -> bool:
        """Hand over a message, Ryu's or one of `wire`, with a transaction id if it has none. As `send`."""
        if message.xid is None:
            self.set_xid(message)
        message.serialize()
        return self.send(message.buf, close_socket=close_socket)

    def _echo_request_loop(self) -> None:
        """Ryu's, but a switch that has answered something else since it was looked at last is not asked."""
        if not self.max_unreplied_echo_requests:
            return
        while self.send_q and len(self.unreplied_echo_requests) <= self.max_unreplied_echo_requests:
            if not self._has_answered:
                request = self.ofproto_parser.OFPEchoRequest(self)
                self.unreplied_echo_requests.append(self.set_xid(request))
                try:
                    self.send_msg(request)
                except SwitchTimedOut:
                    break
            self._has_answered = False
            eventlet.sleep(self.echo_request_interval)
        self.close()

    # --- receiving ---

    def _recv_loop(self) -> None:
        try:
            for count, message in enumerate(self._messages(), start=1):
                self._take(message)
                if count % TURN_MESSAGES == 0 or len(message) > LONG_BYTES:
                    eventlet.sleep(0)
        except BadMessage as error:
            self._refuse(error)
        finally:
            self._packet_ins.connection_ended(self)
            self._reader.close()
            self.socket.close()

    def _messages(self) -> Iterator[bytearray]:
        """Whole messages, as they come in, until the connection ends. Raises BadMessage if it is no OpenFlow."""
        received = bytearray()
        while self.state != DEAD_DISPATCHER:
            try:
                piece = self._reader.recv(READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return
            if not piece or (self._door and self.peer and not self._door.trusts(self.peer, self.address[0])):
                return
            received += piece
            begin = 0
            while len(received) - begin >= shapes.HEADER_BYTES and self.state != DEAD_DISPATCHER:
                end = begin + shapes.length_of(received, begin)
                if end > len(received):
                    break
                yield received[begin:end]
                begin = end
            del received[:begin]

    def _take(self, message: bytearray) -> None:
        is_open = self.state == MAIN_DISPATCHER
        if message[1] == shapes.PACKET_IN:
            if is_open and self.is_admitted:
                self._packet_ins.arrived(self, bytes(message))
            return
        if is_open and not self.is_admitted and message[1] not in UNTIL_ADMITTED:
            return
        self._has_answered = self._has_answered or message[1] in ANSWERS
        try:
            event = event_of(self, message[1], ofproto_parser.header(message)[3], bytes(message)) if is_open else None
            if event is None:
                event = ofp_event.ofp_msg_to_ev(self._parsed(message))
            elif message[1] == shapes.FLOW_REMOVED and not shapes.is_of_single_flow(message):
                _ = event.msg.match     # parsed when it is asked for: what is wrong with it is to be found here
        except BadMessage as error:
            self._refuse(error)
        except Exception as error:
            self._refuse(BadMessage("content", f"message type {message[1]}: {type(error).__name__}: {error}"))
        else:
            self._handle(event)

    def _parsed(self, message: bytearray) -> Any:
        """A message as Ryu parses it. Raises BadMessage, or whatever Ryu does."""
        shapes.check(message)
        version, kind, length, xid = ofproto_parser.header(message)
        parse = ofproto_parser._MSG_PARSERS.get(version)
        if parse is None:
            raise BadMessage("version", f"OpenFlow version {version} is not known")
        parsed = parse(self, version, kind, length, xid, bytes(message))
        self._check_ports(parsed)
        return parsed

    def _check_ports(self, message: Any) -> None:
        """Ryu keeps every port that a switch ever names."""
        kind, known = type(message).__name__, getattr(self, "ports", {})
        if kind == "OFPPortDescStatsReply":
            is_too_much = len(known) + len(message.body) > MAX_PORTS
        else:
            is_too_much = (kind == "OFPPortStatus" and len(known) >= MAX_PORTS and message.desc.port_no not in known
                           and message.reason != message.datapath.ofproto.OFPPR_DELETE)
        if is_too_much:
            raise BadMessage("ports", f"a switch with more than {MAX_PORTS} ports")

    def _handle(self, event: Any) -> None:
        """As Ryu does: applications by their queues, then the handlers of the OpenFlow application itself."""
        self.ofp_brick.send_event_to_observers(event, self.state)
        for handler in self.ofp_brick.get_handlers(event, self.state):
            self._try(handler, event)

    def _try(self, handler: Callable[[Any], None], event: Any) -> None:
        try:
            handler(event)
        except SwitchTimedOut as error:
            log.warning("%s", error)
        except Exception as error:
            self._loops.failed("OpenFlow messages", error)

    def _refuse(self, error: BadMessage) -> None:
        self._bad_messages.labels(error.kind).inc()
        # A switch that is broken or worse must not fill the log.
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        log.log(level, "switch %s sent what it may not: %s", self.label, error)


def door_of(identity: Identity, count: Callable[[str, str, float], bool]) -> Door:
    """For switches' connections over TLS. `count` counts what is refused, and why, and says whether to log it."""

    def refused(why: str, message: str, address: str) -> None:
        if why != ENDED and count("connection", why, time.monotonic()):
            log.warning("the switch at %s is refused: %s%s", address, message, HINTS.get(why, ""))

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return Door(identity, refused, require=SWITCH, most=min(MOST, most // 2))


def serve_switch(socket: Any, address: Any, packet_ins: PacketIns, loops: Loops, bad_messages: Counter,
                 door: Door | None = None, leadership: Leadership | None = None) -> None:
    """Talk with a switch until its connection ends; with a `door`, only over TLS."""
    peer = None
    if door is not None:
        try:
            socket, peer = door.admit(socket, address[0])
        except NotAdmitted:
            return
    with closing(SwitchConnection(socket, address, packet_ins, loops, bad_messages, door, peer,
                                  leadership)) as switch:
        switch.serve()


def hand_over(datapath: Any, message: Any) -> bool:
    """Give a message to a switch that may as well do without: False, and nothing is sent, where it would have to wait
    or the connection has ended."""
    return not datapath.is_backed_up and bool(datapath.send_msg(message))
