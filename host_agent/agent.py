"""What an agent does: one loop over the channel, the queues of held packets and the clock."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import struct
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from speedwell.coflow.settings import SchedulerAddress
from speedwell.fs import systemd
from speedwell.host_agent import netlink
from speedwell.host_agent.channel import (
    MAX_BACKLOGS,
    MAX_DATAGRAM_BYTES,
    NONCE_BYTES,
    Backlog,
    Directive,
    FlowClasses,
    Turns,
    Welcome,
)
from speedwell.host_agent.classes import Classes
from speedwell.host_agent.connections import Senders, Sending, connections
from speedwell.host_agent.errors import AgentError, KernelRefused
from speedwell.host_agent.gate import Gate
from speedwell.host_agent.guardian import MAX_SILENCE_SECONDS, Guardian
from speedwell.host_agent.netlink import NETLINK_SOCK_DIAG
from speedwell.host_agent.own_senders import OwnSenders
from speedwell.host_agent.packet_queues import PacketQueues
from speedwell.host_agent.session import AgentEnd
from speedwell.host_agent.uplink import FIRST_QUEUE, Uplink, UplinkCounters, gate_rule

MAX_GATES = 64
KEEP_SECONDS = 2.0
"""How long a destination's rule stays when its lease is over: iptables takes milliseconds."""
LOOK_SECONDS, GIVE_UP_SECONDS = 0.1, 0.005
"""Between two looks at what is queued; while a slice may be given up."""
WORTH_A_COUNT = 0.1
"""Of a large flow's least bytes: the kernel walks through all connections of all hosts for each count."""
SILENCE_SECONDS = 1.0
"""Without a word of the scheduler; then the agent registers anew."""
SIGNS = 3
"""Of life that the agent gives in that time at least."""
GUARDIAN_SLICES = 2.0
"""Of silence, after which the guardian lets go what is held: less than a lease."""
MAX_BEAT_SECONDS = 0.2
"""Between two beats: well below MAX_SILENCE_SECONDS."""
MAX_PACKET_BITS, LONG_SECONDS = 8 << 16, 0.001
"""Where what segmentation offload makes of a packet takes longer on the uplink, it would not fit a slice."""
BATCH = 64
"""Datagrams that are read before packets have their turn again."""
PAUSE_SECONDS = 0.05
SO_TIMESTAMPNS = 35
_TIMES = struct.Struct("=qq")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Door:
    """A destination's gate, its queue, and the change of its rule that is under way."""

    gate: Gate
    queue: int
    change: Future[None]
    is_leaving: bool = False
    left_at: float = -inf
    """When it was last asked to leave."""


class Agent:
    """`run` until `stop`. Counters are for metrics."""

    def __init__(self, address: str, scheduler: SchedulerAddress, uplink: Uplink, threshold_bytes: int) -> None:
        """Makes rules and classes. Raises AgentError, with nothing left behind."""
        self._uplink_bps = uplink.rate_bps
        self._end = AgentEnd(address, scheduler.key, uplink.rate_bps)
        self._queues = PacketQueues()
        try:
            self._queues.bind(FIRST_QUEUE)
        except KernelRefused as error:
            raise KernelRefused(f"{error}; perhaps another agent runs on this host") from None
        self._diagnostics = netlink.connect(NETLINK_SOCK_DIAG)
        self._diagnostics.settimeout(1.0)
        self._counters = UplinkCounters(uplink.interface)
        self._senders = Senders(address, threshold_bytes)
        self._guardian = Guardian(self._queues, uplink)
        self._own = OwnSenders(address)
        self._channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._channel.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._schedulers = scheduler
        self._place = scheduler.host, scheduler.port
        """Of the scheduler that welcomed us last."""
        self._waking, self._wake = socket.socketpair()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="commands")
        self._doors: dict[str, _Door] = {}
        self._free_queues = list(range(FIRST_QUEUE + MAX_GATES, FIRST_QUEUE, -1))
        self._classes = Classes(self._worker, self._paced)
        self._heard_at = self._registered_at = self._signed_at = -inf
        self._beaten_at = -inf
        self._looked_at = time.monotonic()
        self._dropped_packets = 0
        self._counted_at = self._counted_at_bytes = -inf
        """What the uplink had sent when connections were counted last."""
        self._told: dict[str, Backlog] = {}
        self._is_stopped = False
        self._problem = ""
        """The last one that was logged: a loop that fails and fails says so once."""
        self.counts: Counter[str] = Counter()
        self.late_seconds = 0.0
        """The sum of how late the loop came for its own deadlines."""
        try:
            uplink.make()
        except AgentError:
            self._guardian.end()
            raise

    @property
    def refused(self) -> Counter[str]:
        """Datagrams, by reason."""
        return self._end.refused

    @property
    def is_registered(self) -> bool:
        return self._end.is_registered

    @property
    def held_bytes(self) -> int:
        return sum(door.gate.held_bytes for door in list(self._doors.values()))

    @property
    def destinations(self) -> int:
        """How many have turns, or had until lately."""
        return len(self._doors)

    @property
    def guardian_deaths(self) -> int:
        return self._guardian.deaths

    def stop(self, *_: object) -> None:
        """End `run`, from any thread or a signal's handler."""
        self._is_stopped = True
        with suppress(OSError):
            self._wake.send(b"x")

    def run(self) -> None:
        """Returns when all that was made is gone again."""
        turned_at = time.monotonic()
        watchdog = systemd.Watchdog()
        try:
            while not self._is_stopped:
                watchdog.beat(turned_at)
                try:
                    turned_at = self._turn(turned_at)
                except Exception as error:
                    self._failed("a turn", error)
                    time.sleep(PAUSE_SECONDS)
        finally:
            self._worker.shutdown(cancel_futures=True)
            self._own.close()
            self._guardian.end()

    def _failed(self, what: str, error: BaseException) -> None:
        self.counts["failures"] += 1
        problem = f"{what} failed: {error or type(error).__name__}"
        if problem != self._problem:
            log.error(problem, exc_info=None if isinstance(error, AgentError | OSError) else error)
        self._problem = problem

    def _turn(self, turned_at: float) -> float:
        due = self._due(time.monotonic())
        wait = max(0.0, due - time.monotonic())
        sockets = self._queues.socket, self._channel, self._classes.socket, self._own.socket, self._waking
        readable, _, _ = select.select(sockets, [], [], min(wait, 60.0))
        now = time.monotonic()
        self.counts["turns"] += 1
        if not readable:
            self.late_seconds += now - max(due, turned_at)
        if self._doors and now - turned_at > self._silence_seconds:
            self._queues.accept_all()           # as the guardian does, unless it was its end that took so long
            for door in self._doors.values():
                door.gate.forget_waiting()
        if self._channel in readable:
            self._hear(now)
        if self._queues.socket in readable:
            self._hold(now)
        self._release(now)
        if self._own.socket in readable:
            self._hear_own(now)
        if self._classes.socket in readable:
            self.counts["marks"] += self._classes.hear()
        if now >= self._look_due(now):
            self._looked_at = now
            self._look(now)
            self._tidy(now)
            self._classes.end_leases(now)
        if self._doors and now - self._beaten_at >= self._beat_seconds:
            self._beaten_at = now
            self._guardian.beat(self._silence_seconds)
        return now

    def _due(self, now: float) -> float:
        due = self._look_due(now)
        if self._doors:
            due = min(due, self._beaten_at + self._beat_seconds,
                      *(door.gate.next_change(now) for door in self._doors.values()))
        return due

    def _look_due(self, now: float) -> float:
        return min(self._looked_at + LOOK_SECONDS, max(self._looked_at + GIVE_UP_SECONDS, self._drained_at(now)))

    def _drained_at(self, now: float) -> float:
        return min((door.gate.drained_at(now) for door in self._doors.values()), default=inf)

    @property
    def _slice_seconds(self) -> float:
        return self._end.slice_microseconds / 1e6 or 0.01

    @property
    def _silence_seconds(self) -> float:
        return min(GUARDIAN_SLICES * self._slice_seconds, MAX_SILENCE_SECONDS)

    @property
    def _beat_seconds(self) -> float:
        return min(self._slice_seconds, MAX_BEAT_SECONDS)

    # --- the gate ---

    def _hold(self, now: float) -> None:
        packets = self._queues.receive()
        gates = {door.queue: door.gate for door in self._doors.values()}
        for queue, number, size_bytes in packets:
            if gate := gates.get(queue):
                if gate.is_asleep(now):
                    self._looked_at = -inf      # nobody plans for what has just begun: say so now
                gate.arrive(number, size_bytes)
            else:
                self._queues.accept(queue, number)
        self.counts["packets"] += len(packets)

    def _release(self, now: float) -> None:
        for door in self._doors.values():
            if (last := door.gate.release(now)) is not None:
                self._queues.accept(door.queue, last)

    def _direct(self, turns: Turns, now: float) -> None:
        door = self._doors.get(turns.destination)
        if door is None:
            if not turns.lease_microseconds:
                return
            if not self._free_queues:
                self.counts["too_many_destinations"] += 1
                return
            queue = self._free_queues.pop()
            self._queues.bind(queue, MAX_PACKET_BITS / self._uplink_bps > LONG_SECONDS)
            door = self._doors[turns.destination] = _Door(
                Gate(self._uplink_bps), queue, self._change_rule(turns.destination, queue, True))
            self._beaten_at = -inf
        door.gate.direct(turns, now)
        self._own.tell(turns.destination, door.gate)

    def _hear_own(self, now: float) -> None:
        for destination, is_new in self._own.hear(now):
            if is_new:
                self._looked_at = self._counted_at_bytes = -inf     # so that it is given turns soon
            door = self._doors.get(destination)
            self._own.tell(destination, door.gate if door else None)

    def _change_rule(self, destination: str, queue: int, is_wanted: bool) -> Future[None]:
        change = self._worker.submit(gate_rule, destination, queue, is_wanted)
        change.add_done_callback(partial(self._ended, f"the rule for {destination}"))
        return change

    def _tidy(self, now: float) -> None:
        """See to the guardian, and take rules away that nobody has needed for a while."""
        self._guardian.look()
        for destination, door in list(self._doors.items()):
            if not door.change.done():
                continue
            if door.is_leaving != bool(door.change.exception()):    # there is no rule
                self._hold(now)
                self._release(now)
                self._queues.unbind(door.queue)
                self._free_queues.append(door.queue)
                del self._doors[destination]
            elif now > max(door.gate.free_at, door.left_at) + KEEP_SECONDS:
                door.change = self._change_rule(destination, door.queue, False)
                door.is_leaving, door.left_at = True, now
        if not self._doors and self._beaten_at > -inf:
            self._beaten_at = -inf
            self._guardian.beat(0)

    def _ended(self, what: str, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()):
            self._failed(what, error)

    def _paced(self, future: Future[int]) -> None:
        self._ended("pacing", future)
        if not future.cancelled() and not future.exception():
            self.counts["paces"] += future.result()

    # --- the channel ---

    def _hear(self, now: float) -> None:
        with suppress(BlockingIOError, ConnectionRefusedError):
            for _ in range(BATCH):
                datagram, extra, _, source = self._channel.recvmsg(MAX_DATAGRAM_BYTES + 1, _TIMES.size * 4)
                message = self._end.take(datagram)
                match message:
                    case Welcome():
                        self._place = source
                        self._signed_at = self._looked_at = self._counted_at_bytes = -inf
                        self._told = {}
                        log.info("registered with the scheduler at %s:%d", *source)
                    case Directive():
                        ago = min(SILENCE_SECONDS, max(0.0, time.time() - _arrival(extra)))
                        arrived_at = time.monotonic() - ago
                        for turns in message.turns:
                            self._direct(turns, arrived_at)
                    case FlowClasses():
                        self.counts["marks"] += self._classes.tell(message.flows, now)
                if message is not None:
                    self._heard_at = now
                    self.counts["directives"] += isinstance(message, Directive)

    def _look(self, now: float) -> None:
        """Report what is queued, or register."""
        if now - self._heard_at > SILENCE_SECONDS:
            if now - self._registered_at >= SILENCE_SECONDS:
                self._registered_at = now
                with suppress(OSError):     # those that are away
                    self._schedulers.send(self._channel, self._end.register(secrets.token_bytes(NONCE_BYTES)))
            return
        if not self._end.is_registered:
            return
        sent_bytes = self._counters.sent_bytes()
        moved_bytes = sent_bytes - self._counted_at_bytes
        is_sign_due = now - self._signed_at >= SILENCE_SECONDS / SIGNS
        is_due = now - self._counted_at >= LOOK_SECONDS and (
            moved_bytes >= self._senders.threshold_bytes * WORTH_A_COUNT or self.held_bytes
            or (moved_bytes and is_sign_due) or any(each.queued_bytes for each in self._told.values()))
        is_to_count = is_due or moved_bytes == inf or self._drained_at(now) <= now
        if is_to_count:
            self._senders.count(list(connections(self._diagnostics)))
            self._counted_at = now
        backlogs = self._backlogs(now)
        news = [each for destination, each in backlogs.items() if each.queued_bytes
                or self._told.get(destination) != each]
        if not is_sign_due and not (news if is_to_count else _queued(backlogs) != _queued(self._told)):
            return
        news.sort(key=lambda each: each.queued_bytes, reverse=True)
        if is_sign_due:
            self._signed_at, self._dropped_packets = now, self._counters.dropped_packets()
        self._send(self._end.report(self._dropped_packets, news[:MAX_BACKLOGS]))
        untold = {each.destination for each in news[MAX_BACKLOGS:]}
        if is_to_count:
            self._counted_at_bytes = -inf if untold else sent_bytes
        self._told = {destination: each for destination, each in backlogs.items() if destination not in untold}
        self._senders.drop(self._told)

    def _backlogs(self, now: float) -> dict[str, Backlog]:
        """TCP's own backlog has what is held of it; of other protocols only what is held is known. What waits for
        acknowledgements alone needs no turn."""
        backlogs = {}
        wanted = self._own.wanted_bytes(now)
        for destination in self._senders.sums.keys() | self._doors.keys() | wanted.keys():
            sending = self._senders.sums.get(destination, Sending())
            queued_bytes, door = sending.queued_bytes, self._doors.get(destination)
            if door is not None and door.gate.is_done(now, sending.unsent_bytes > 0):
                queued_bytes = 0
            elif door is not None:
                queued_bytes = max(queued_bytes, door.gate.held_bytes)
            if destination in self._senders.sums or queued_bytes or wanted[destination]:
                backlogs[destination] = Backlog(destination, queued_bytes + wanted[destination], sending.sent_bytes,
                                                sending.retransmitted_segments)
        return backlogs

    def _send(self, datagram: bytes) -> None:
        with suppress(OSError):     # a scheduler or a network that is away: leases run out, and we register anew
            self._channel.sendto(datagram, self._place)


def _queued(backlogs: dict[str, Backlog]) -> set[str]:
    return {destination for destination, each in backlogs.items() if each.queued_bytes}


def _arrival(extra: list[tuple[int, int, bytes]]) -> float:
    """When the kernel had a datagram, Unix time: the loop may have come late."""
    for _, kind, data in extra:
        if kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMES.unpack_from(data)
            return float(seconds + nanoseconds / 1e9)
    return inf
