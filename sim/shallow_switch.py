"""Senders before one switch port with a shallow buffer, frame by frame, compiled.

Time goes in slots: what a sender's link takes for a frame. In each, every host whose gate has credit sends at most
one frame, in an order that is drawn anew now and then; what finds the buffer full is dropped; the port sends
`per_slot` frames on. TCP is NewReno with the behaviour that incast comes from: a loss that three duplicate
acknowledgements do not show waits for a timeout, of 200 ms at least. A held host's timers run on, so a wait of more
than 200 ms is a timeout too. UDP never backs off; a message counts if all of its frames arrive.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from speedwell.sim.compiled import compiled

BULK, STRIPED, SHORT, UDP = range(4)
NONE = -1
NEVER = 2**62
INITIAL_WINDOW = 3.0        # frames: Linux 2.6.29
DUPLICATES = 3
TIMER_SLOTS = 16
IDLE = 0.01                 # the part of its slots that a host lets pass, busy with something else
HOST_QUEUE = 1000           # frames of UDP that a host's own queue holds
ACKS = 8192
ORDER = 1 / 44
"""How likely another host is first in the next slot. Cards of one rate stay in step while a message of 64 KB goes
out: of two senders one loses whole messages and the other none."""

# indices of State.counters
CLOCK, HEAD, QUEUED, ACK_HEAD, ACK_TAIL, SERVED, DROPPED, OFFERED, STRIPES_LEFT, FIRST = range(10)

Records = npt.NDArray[np.void]

FLOW = np.dtype([
    ("kind", np.int64), ("host", np.int64),
    ("begin", np.int64),            # the slot before which it sends nothing
    ("limit", np.int64),            # frames that the program has given so far
    ("part", np.int64),             # frames of a stripe, a short flow or a UDP message
    ("una", np.int64), ("nxt", np.int64), ("received", np.int64), ("good", np.int64),
    ("cwnd", np.float64), ("ssthresh", np.float64),
    ("duplicates", np.int64), ("recover", np.int64), ("guard", np.int64), ("resend", np.bool_), ("opening", np.bool_),
    ("rto", np.int64), ("deadline", np.int64), ("timeouts", np.int64),
    ("rate", np.float64), ("credit", np.float64), ("message", np.int64), ("arrived", np.int64),     # UDP
    ("on", np.int64), ("shift", np.int64),      # UDP: sends for `on` slots, then is silent for as many
], align=True)

HOST = np.dtype([
    ("first", np.int64), ("flows", np.int64), ("next", np.int64),
    ("rate", np.float64), ("depth", np.float64), ("credit", np.float64),        # its gate, in frames a slot
    ("reported", np.bool_),         # the scheduler was told that it has a backlog
    ("idle", np.int64),
], align=True)


class State(NamedTuple):
    counters: npt.NDArray[np.int64]
    flows: Records
    hosts: Records
    seen: npt.NDArray[np.bool_]             # by flow, frames behind a gap, as a ring
    queue: npt.NDArray[np.int64]            # flow and sequence number
    acks: npt.NDArray[np.int64]             # slot, flow and number of the next frame
    samples: npt.NDArray[np.int64]          # by sample: frames in the buffer, frames served until then
    per_slot: int
    window: int
    rtt: int
    rto: int
    opening_rto: int
    think: int
    hysteresis: int
    sample_slots: int
    is_coordinated: bool


@compiled
def seed_chance(seed: int) -> None:
    np.random.seed(seed)


@compiled
def _can_send(s: State, f: int) -> bool:
    flow, now = s.flows[f], s.counters[CLOCK]
    if flow.begin > now:
        return False
    if flow.kind == UDP:
        return flow.nxt < flow.limit and (flow.on == 0 or (now + flow.shift) // flow.on % 2 == 0)
    return flow.resend or flow.nxt < min(flow.limit, flow.una + min(int(flow.cwnd), s.window))


@compiled
def _ready_flow(s: State, h: int) -> int:
    host = s.hosts[h]
    for step in range(host.flows):
        f = host.first + (host.next + step) % host.flows
        if _can_send(s, f):
            return f
    return NONE


@compiled
def _send(s: State, f: int) -> None:
    flow, now = s.flows[f], s.counters[CLOCK]
    number = flow.nxt
    if flow.resend:
        number = flow.una
        flow.resend = False
    else:
        flow.nxt += 1
    if flow.deadline == NONE:
        flow.deadline = now + flow.rto
    s.counters[OFFERED] += 1
    if s.counters[QUEUED] == len(s.queue):
        s.counters[DROPPED] += 1
        return
    place = (s.counters[HEAD] + s.counters[QUEUED]) % len(s.queue)
    s.queue[place, 0] = f
    s.queue[place, 1] = number
    s.counters[QUEUED] += 1


@compiled
def _arrive(s: State, f: int, number: int) -> None:
    flow = s.flows[f]
    if flow.kind == UDP:
        message = number // flow.part
        flow.arrived = flow.arrived + 1 if message == flow.message else 1
        flow.message = message
        if flow.arrived == flow.part:
            flow.good += flow.part
        return
    ring = s.seen.shape[1]
    if number >= flow.received:
        s.seen[f, number % ring] = True
        before = received = flow.received
        while s.seen[f, received % ring]:
            s.seen[f, received % ring] = False
            received += 1
        flow.good += received - before
        flow.received = received
        if flow.kind == STRIPED and received == flow.limit and before < received:
            _stripe_done(s)
    place = s.counters[ACK_TAIL] % ACKS
    s.acks[place, 0] = s.counters[CLOCK] + s.rtt
    s.acks[place, 1] = f
    s.acks[place, 2] = flow.received
    s.counters[ACK_TAIL] += 1


@compiled
def _stripe_done(s: State) -> None:
    """The client asks for the next block once it has the whole of this one."""
    s.counters[STRIPES_LEFT] -= 1
    if s.counters[STRIPES_LEFT] > 0:
        return
    for flow in s.flows:
        if flow.kind == STRIPED:
            flow.limit += flow.part
            flow.begin = s.counters[CLOCK] + s.rtt + int(s.think * (0.9 + 0.2 * np.random.random()))
            s.counters[STRIPES_LEFT] += 1


@compiled
def _acknowledge(s: State, f: int, number: int) -> None:
    flow, now = s.flows[f], s.counters[CLOCK]
    if number > flow.una:
        new = number - flow.una
        flow.una = number
        flow.nxt = max(flow.nxt, number)
        flow.duplicates = 0
        flow.rto = s.rto
        flow.resend = False
        if flow.opening:
            flow.opening = False
            flow.cwnd = INITIAL_WINDOW
        elif flow.recover == NONE:
            flow.cwnd += new if flow.cwnd < flow.ssthresh else new / flow.cwnd
        elif number > flow.recover:
            flow.recover = NONE
            flow.cwnd = flow.ssthresh
        else:
            flow.resend = True
            flow.cwnd = max(flow.cwnd - new + 1, 1.0)
        flow.cwnd = min(flow.cwnd, s.window)
        flow.deadline = now + s.rto if flow.nxt > number else NONE
        if flow.kind == SHORT and number == flow.limit:
            open_connection(s, f)
    elif number == flow.una and flow.nxt > number:
        flow.duplicates += 1
        if flow.recover != NONE:
            flow.cwnd += 1.0
        elif flow.duplicates == DUPLICATES and number >= flow.guard:
            flow.recover = flow.nxt - 1
            flow.ssthresh = max((flow.nxt - number) / 2, 2.0)
            flow.cwnd = flow.ssthresh + DUPLICATES
            flow.resend = True


@compiled
def open_connection(s: State, f: int) -> None:
    """The next of a sequence of short connections: its first frame opens it."""
    flow = s.flows[f]
    flow.limit += flow.part + 1
    flow.opening = True
    flow.cwnd = 1.0
    flow.ssthresh = s.window
    flow.recover = NONE
    flow.rto = s.opening_rto
    flow.deadline = NONE


@compiled
def _run_timers(s: State) -> None:
    now = s.counters[CLOCK]
    for f in range(len(s.flows)):
        flow = s.flows[f]
        if flow.kind == UDP:
            continue
        if flow.deadline == NONE:
            if _can_send(s, f):         # it may wait at the gate: TCP has sent it already
                flow.deadline = now + flow.rto
        elif flow.deadline <= now:
            flow.ssthresh = max((flow.nxt - flow.una) / 2, 2.0)
            flow.cwnd = 1.0
            flow.recover = NONE
            flow.resend = False
            flow.duplicates = 0
            flow.guard = max(flow.guard, flow.nxt)
            flow.nxt = flow.una
            flow.rto = min(2 * flow.rto, 300 * s.rto)
            flow.deadline = now + flow.rto
            flow.timeouts += 1


@compiled
def _give(s: State) -> None:
    """What the programs that send at a rate of their own have for this slot."""
    for flow in s.flows:
        if flow.kind == UDP and flow.rate < 1.0:
            flow.credit += flow.rate
            if flow.credit >= 1.0:
                flow.credit -= 1.0
                if flow.limit - flow.nxt < HOST_QUEUE:
                    flow.limit += 1


@compiled
def advance(s: State, until: int) -> int:
    """Go on until the clock shows `until`, or a host has something to report: h + 1 if it has a backlog now, -h - 1
    if it gives its slice up."""
    while s.counters[CLOCK] < until:
        now = s.counters[CLOCK]
        while s.counters[ACK_HEAD] < s.counters[ACK_TAIL] and s.acks[s.counters[ACK_HEAD] % ACKS, 0] <= now:
            place = s.counters[ACK_HEAD] % ACKS
            s.counters[ACK_HEAD] += 1
            _acknowledge(s, s.acks[place, 1], s.acks[place, 2])
        if now % TIMER_SLOTS == 0:
            _run_timers(s)
        _give(s)
        report = 0
        if np.random.random() < ORDER:
            s.counters[FIRST] = np.random.randint(len(s.hosts))
        for step in range(len(s.hosts)):
            h = (s.counters[FIRST] + step) % len(s.hosts)
            host = s.hosts[h]
            f = _ready_flow(s, h)
            host.credit = min(host.credit + host.rate, host.depth)
            if f != NONE and host.credit >= 1.0 and np.random.random() >= IDLE:
                host.credit -= 1.0
                host.next = f - host.first + 1
                _send(s, f)
            host.idle = 0 if f != NONE or host.rate == 0.0 else host.idle + 1
            if s.is_coordinated and report == 0:
                if f != NONE and not host.reported:
                    host.reported = True
                    report = h + 1
                elif host.reported and host.idle >= s.hysteresis:
                    host.reported = False
                    host.rate = 0.0
                    host.credit = 0.0
                    report = -h - 1
        for _ in range(min(s.per_slot, s.counters[QUEUED])):
            place = s.counters[HEAD]
            s.counters[HEAD] = (place + 1) % len(s.queue)
            s.counters[QUEUED] -= 1
            s.counters[SERVED] += 1
            _arrive(s, s.queue[place, 0], s.queue[place, 1])
        if now % s.sample_slots == 0 and now // s.sample_slots < len(s.samples):
            s.samples[now // s.sample_slots, 0] = s.counters[QUEUED]
            s.samples[now // s.sample_slots, 1] = s.counters[SERVED]
        s.counters[CLOCK] += 1
        if report != 0:
            return report
    return 0
