"""The rules of coflowsim (github.com/coflow/coflowsim), to compare with its published results.

A trace's coflows run on one big switch: only the ports of the racks limit them. These rules differ from those of the
policies in `controller/policy` in ways that matter on the Facebook trace, so they are kept apart:

* Time goes in steps of 8 ms, in which a port carries one megabyte. A coflow counts from the last step that begins
  before its arrival.
* A coflow's mappers in one rack count as one. What a rack receives is rounded up to a multiple of as many megabytes
  as the coflow has mappers, so that each flow is whole megabytes.
* Rates are set when a coflow comes or ends, and not when a flow ends.
* SEBF, SCF and FIFO keep the order that a coflow was given when it came: by the bytes on its busiest port, by its
  largest flow, by arrival. Each gets MADD rates, but one that needs a port that has nothing left gets none. What is
  left then is shared by the flows of all these: each takes the smaller of the equal shares of its two ports. What is
  left after that goes flow by flow, coflows in the order of deadlines that nobody asked for: their start and one to
  two times their shortest time, at random (java.util.Random, seed 17).
* DARK (Aalo) has ten queues for coflows that have sent up to 10 MB (2^20 bytes), 100 MB and so on. In order of
  queues, then of arrival there, each coflow shares what is left as above.
* What a rack has still to receive is kept beside what its flows have still to send. Both are counted down in every
  step, and the rounding of some 10^5 steps decides whether a port that large coflows fill has "nothing" left, which
  is 0.001 bit/s. It moves the averages of SEBF and SCF by 2 %, of FIFO by 7 %, so each step is made
  as it is there.
* A rack is done when it has nothing to receive, by the first of these counts; by rounding its flows can have some
  hundredths of a byte left then. They go on until the next coflow comes, and stand still from then on, but ask for
  bandwidth until their coflow ends: they hold it back at ports that are full, and take what is left over at others.
* FAIR gives a flow the smaller of the equal shares of its two ports, and nobody what is left over: not max-min.
"""

import math
from collections.abc import Iterator

import numpy as np
from numba import njit

from sim.coflow_trace import BITS_PER_MEGABYTE, CoflowTrace
from sim.coflowsim_fair import run_fair_ports
from sim.errors import InvalidSetting
from sim.state import Integers, Reals

STEP_SECONDS = 0.008
MEGABYTE = 2.0**20
PORT_BPS = 2.0**30              # in seconds of 1024 ms: a megabyte a step
STEPS_PER_SECOND = 128.0
NOTHING = 1e-3                  # bits per second, and bytes
QUEUES, FIRST_LIMIT_BYTES, NEXT_LIMIT = 10, 10 * MEGABYTE, 10.0
RECEIVING, RUNNING_OUT, STANDING = 0, 1, 2
"""What a rack does with a coflow: it is done in the last two, see above."""
IN_ORDER = ("SEBF", "SCF", "FIFO")
POLICIES = (*IN_ORDER, "DARK", "FAIR")


class _Flows:
    """The trace in bytes and steps; the flows of coflow c stand together, the racks they go to in order."""

    def __init__(self, trace: CoflowTrace) -> None:
        sources: list[int] = []
        destinations: list[int] = []
        megabytes: list[float] = []
        first, starts, busiest, largest, deadlines = [], [], [], [], []
        random = _java_random(17)
        for coflow in trace.coflows:
            mappers = sorted(set(coflow.mapper_racks))
            received: dict[int, float] = {}
            for rack, bits in coflow.reducers:
                received[rack] = received.get(rack, 0.0) + math.ceil(bits / BITS_PER_MEGABYTE - 1e-9)
            each = {rack: math.ceil(received[rack] / len(mappers) - 1e-9) for rack in sorted(received)}
            first.append(len(sources))
            for rack, size in each.items():
                sources += mappers
                destinations += [rack] * len(mappers)
                megabytes += [float(size)] * len(mappers)
            start = max(math.ceil(coflow.arrival_seconds / STEP_SECONDS - 1e-9) - 1, 0)
            starts.append(start)
            busiest.append(max(sum(each.values()), max(each.values()) * len(mappers)))
            largest.append(max(each.values()))
            deadlines.append(start * 8 + busiest[-1] / STEPS_PER_SECOND * (1 + next(random)) * 1000)
        self.sources, self.destinations = np.array(sources), np.array(destinations)
        self.left = np.array(megabytes)
        self.first = np.array([*first, len(sources)])
        self.starts = np.array(starts)
        self.busiest, self.largest = np.array(busiest, float), np.array(largest, float)
        self.deadlines = np.array(deadlines)


def _java_random(seed: int) -> Iterator[float]:
    """java.util.Random.nextDouble, as its documentation defines it."""
    state = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)
    while True:
        parts = []
        for bits in (26, 27):
            state = (state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
            parts.append(state >> (48 - bits))
        yield ((parts[0] << 27) + parts[1]) / (1 << 53)


def run(trace: CoflowTrace, policy: str) -> dict[int, float]:
    """Completion times in seconds by coflow number, under one of `POLICIES`. Raises InvalidSetting for another."""
    if policy not in POLICIES:
        raise InvalidSetting(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    flows = _Flows(trace)
    ends = np.zeros(len(trace.coflows))
    if policy == "FAIR":
        run_fair_ports(trace.racks, flows.first, flows.sources, flows.destinations, flows.left, flows.starts, ends)
    else:
        key = {"SEBF": flows.busiest, "SCF": flows.largest}.get(policy, np.zeros(len(ends)))
        _run_coflows(trace.racks, flows.first, flows.sources, flows.destinations, flows.left * MEGABYTE,
                     flows.starts, key, flows.deadlines, policy == "DARK", ends)
    seconds = (ends - flows.starts) * STEP_SECONDS
    return {coflow.number: float(each) for coflow, each in zip(trace.coflows, seconds, strict=True)}


@njit(cache=True)
def _run_coflows(racks: int, first: Integers, sources: Integers, destinations: Integers, left: Reals,
                 starts: Integers, key: Reals, deadlines: Reals, dark: bool, ends: Reals) -> None:
    """SEBF, SCF and FIFO by `key`, then by arrival; or DARK."""
    coflows = len(starts)
    rates = np.zeros(len(left))
    last = first[1:].copy()                     # where the live flows of a coflow end
    to_receive = np.zeros((coflows, racks))
    state = np.full((coflows, racks), RECEIVING, np.int8)
    racks_left = np.zeros(coflows, np.int64)    # that are receiving
    sent = np.zeros(coflows)
    queue = np.zeros(coflows, np.int64)
    entered = np.arange(coflows)                # the order in which queues were entered
    entries = coflows
    order = np.empty(coflows, np.int64)
    live, come, step = 0, 0, 0
    while come < coflows or live > 0:
        if live == 0 and starts[come] > step:
            step = starts[come]
        looked_at = step - 1                    # a coflow that ends is noticed within its last step
        while come < coflows and starts[come] <= step:
            looked_at = step
            place = live
            while place > 0 and not dark and key[come] < key[order[place - 1]]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = come
            for f in range(first[come], last[come]):
                to_receive[come, destinations[f]] += left[f]
                racks_left[come] += f == first[come] or destinations[f] != destinations[f - 1]
            live += 1
            come += 1
        if dark:
            for level in range(QUEUES - 1):
                for k in range(live):
                    c = order[k]
                    if queue[c] == level and sent[c] > FIRST_LIMIT_BYTES * NEXT_LIMIT**level:
                        queue[c] = level + 1
                        entered[c] = entries
                        entries += 1
                _sort(order, live, queue, entered)
            _share_in_order(racks, order[:live], first, last, sources, destinations, rates)
        else:
            if looked_at == step:
                for k in range(live):
                    for rack in range(racks):
                        if state[order[k], rack] == RUNNING_OUT:
                            state[order[k], rack] = STANDING
            _madd_in_order(racks, order[:live], first, last, sources, destinations, left, to_receive,
                           deadlines - looked_at * 8, rates)
        until = starts[come] if come < coflows else 1 << 60
        ended = False
        while step < until and not ended:
            # As many steps at once as certainly end no coflow, then one by one.
            steps = until - step
            for k in range(live):
                steps = min(steps, _steps_left(order[k], first, last, destinations, left, rates, state[order[k]]))
            steps = max(steps, 1)
            for k in range(live):
                c = order[k]
                if dark:
                    sent[c] += _send(c, first, last, sources, destinations, left, rates, steps)
                    ended = ended or last[c] == first[c]
                else:
                    racks_left[c] -= _send_stepwise(c, first, last, sources, destinations, left, rates,
                                                    to_receive[c], state[c], steps)
                    ended = ended or racks_left[c] == 0
            if ended and steps > 1:
                raise RuntimeError("a coflow ended before it could have")
            step += steps
        kept = 0
        for k in range(live):
            c = order[k]
            if last[c] == first[c] or racks_left[c] == 0:
                ends[c] = step
            else:
                order[kept] = c
                kept += 1
        live = kept


@njit(cache=True)
def _sort(order: Integers, live: int, queue: Integers, entered: Integers) -> None:
    for k in range(1, live):
        c, place = order[k], k
        while place > 0 and (queue[order[place - 1]], entered[order[place - 1]]) > (queue[c], entered[c]):
            order[place] = order[place - 1]
            place -= 1
        order[place] = c


@njit(cache=True)
def _steps_left(c: int, first: Integers, last: Integers, destinations: Integers, left: Reals, rates: Reals,
                state: np.ndarray) -> int:
    """Whole steps in which the coflow does not end if rates stay: a flow of it has more than a byte left then."""
    most = 0.0
    for f in range(first[c], last[c]):
        if state[destinations[f]] == RECEIVING and left[f] > 1.0:
            if rates[f] <= 0.0:
                return 1 << 59
            most = max(most, (left[f] - 1.0) / (rates[f] / 8 / STEPS_PER_SECOND))
    return int(min(most, 1e15))


@njit(cache=True)
def _send(c: int, first: Integers, last: Integers, sources: Integers, destinations: Integers, left: Reals,
          rates: Reals, steps: int) -> float:
    """Let the coflow's flows run, and close up over those that have ended; returns what was sent."""
    total, kept = 0.0, first[c]
    for f in range(first[c], last[c]):
        moved = min(left[f], rates[f] / 8 * (1.0 / STEPS_PER_SECOND) * steps)
        total += moved
        if left[f] - moved > NOTHING:
            left[kept], rates[kept] = left[f] - moved, rates[f]
            sources[kept], destinations[kept] = sources[f], destinations[f]
            kept += 1
    last[c] = kept
    return total


@njit(cache=True)
def _send_stepwise(c: int, first: Integers, last: Integers, sources: Integers, destinations: Integers, left: Reals,
                   rates: Reals, to_receive: Reals, state: np.ndarray, steps: int) -> int:
    """The same step by step, with what racks have to receive; returns in how many racks the coflow is now done."""
    done, kept, begin = 0, first[c], first[c]
    moves, live = np.empty(last[c] - begin), np.empty(last[c] - begin)
    while begin < last[c]:
        rack = destinations[begin]
        end = begin
        while end < last[c] and destinations[end] == rack:
            moves[end - begin] = rates[end] / 8 * (1.0 / STEPS_PER_SECOND)
            live[end - begin] = left[end]
            end += 1
        if state[rack] != STANDING:
            was_receiving = state[rack] == RECEIVING
            _count_down(moves, live, end - begin, to_receive, state, rack, steps)
            done += was_receiving and state[rack] != RECEIVING
        for i in range(end - begin):
            if live[i] > NOTHING:
                f = begin + i
                left[kept], rates[kept], sources[kept], destinations[kept] = live[i], rates[f], sources[f], rack
                kept += 1
        begin = end
    last[c] = kept
    return done


@njit(cache=True)
def _count_down(moves: Reals, live: Reals, flows: int, to_receive: Reals, state: np.ndarray, rack: int, steps: int,
                ) -> None:
    """Step by step what flows to a rack have left, and what the rack has still to receive."""
    active = 0
    rows = np.empty(flows, np.int64)
    for i in range(flows):
        if moves[i] > 0:
            rows[active] = i
            active += 1
    short_moves, short = moves[rows[:active]], live[rows[:active]]
    left, receiving, going, running = to_receive[rack], state[rack] == RECEIVING, flows, active
    for _ in range(steps):
        if running == 0:
            break
        for i in range(active):
            if short[i] > 0.0:
                move = min(short_moves[i], short[i])
                short[i] -= move
                left -= move
                if short[i] <= NOTHING:
                    short[i] = 0.0
                    going -= 1
                    running -= 1
                if receiving and (left <= NOTHING or going == 0):
                    left, receiving = 0.0, False
    for i in range(active):
        live[rows[i]] = short[i]
    to_receive[rack] = left
    if not receiving:
        state[rack] = RUNNING_OUT


@njit(cache=True)
def _madd_in_order(racks: int, order: Integers, first: Integers, last: Integers, sources: Integers,
                   destinations: Integers, left: Reals, to_receive: np.ndarray, due: Reals, rates: Reals) -> None:
    send_free, receive_free = np.full(racks, PORT_BPS), np.full(racks, PORT_BPS)
    sends, receives = np.zeros(racks), np.zeros(racks)
    skipped = np.zeros(len(order), np.bool_)
    for k in range(len(order)):
        c = order[k]
        sends[:] = 0.0
        for f in range(first[c], last[c]):
            rates[f] = 0.0
            sends[sources[f]] += left[f]
        seconds = 0.0
        for rack in range(racks):
            # A rack that is done can have less than nothing to receive: over a port that is overfull by as little,
            # that counts.
            bytes_out, bytes_in = sends[rack], to_receive[c, rack]
            if (bytes_out > 0 and send_free[rack] <= NOTHING) or (bytes_in > 0 and receive_free[rack] <= NOTHING):
                skipped[k] = True
                break
            if send_free[rack] != 0.0:
                seconds = max(seconds, bytes_out * 8 / send_free[rack])
            if receive_free[rack] != 0.0:
                seconds = max(seconds, bytes_in * 8 / receive_free[rack])
        if skipped[k]:
            continue
        sends[:] = 0.0
        receives[:] = 0.0
        for f in range(first[c], last[c]):
            if receive_free[destinations[f]] <= NOTHING:
                continue
            rate = left[f] * 8 / seconds
            if rate > send_free[sources[f]] or rate > receive_free[destinations[f]]:
                rate = min(send_free[sources[f]], receive_free[destinations[f]])
            rates[f] = rate
            sends[sources[f]] += rate
            receives[destinations[f]] += rate
        send_free -= sends
        receive_free -= receives
    _share(order, skipped, first, last, sources, destinations, rates, send_free, receive_free, sends, receives)
    for k in np.argsort(np.trunc(due[order]), kind="mergesort"):
        c = order[k]
        for f in range(first[c], last[c]):
            if receive_free[destinations[f]] > NOTHING:
                more = min(send_free[sources[f]], receive_free[destinations[f]])
                if more > NOTHING:
                    rates[f] += more
                    send_free[sources[f]] -= more
                    receive_free[destinations[f]] -= more


@njit(cache=True)
def _share_in_order(racks: int, order: Integers, first: Integers, last: Integers, sources: Integers,
                    destinations: Integers, rates: Reals) -> None:
    send_free, receive_free = np.full(racks, PORT_BPS), np.full(racks, PORT_BPS)
    sends, receives = np.zeros(racks), np.zeros(racks)
    alone = np.ones(1, np.bool_)
    for k in range(len(order)):
        rates[first[order[k]] : last[order[k]]] = 0.0
        _share(order[k : k + 1], alone, first, last, sources, destinations, rates, send_free, receive_free, sends,
               receives)


@njit(cache=True)
def _share(order: Integers, among: np.ndarray, first: Integers, last: Integers, sources: Integers,
           destinations: Integers, rates: Reals, send_free: Reals, receive_free: Reals, sends: Reals,
           receives: Reals) -> None:
    """Each flow `among` the coflows gets the smaller of the equal shares of its ports; what is free shrinks."""
    sends[:] = 0.0
    receives[:] = 0.0
    for k in range(len(order)):
        if among[k]:
            for f in range(first[order[k]], last[order[k]]):
                if send_free[sources[f]] > NOTHING and receive_free[destinations[f]] > NOTHING:
                    sends[sources[f]] += 1
                    receives[destinations[f]] += 1
    send_used, receive_used = np.zeros(len(sends)), np.zeros(len(sends))
    for k in range(len(order)):
        if among[k]:
            for f in range(first[order[k]], last[order[k]]):
                s, d = sources[f], destinations[f]
                if send_free[s] > NOTHING and receive_free[d] > NOTHING:
                    rates[f] = min(send_free[s] / sends[s], receive_free[d] / receives[d])
                    if rates[f] <= NOTHING:
                        rates[f] = 0.0
                    send_used[s] += rates[f]
                    receive_used[d] += rates[f]
    send_free -= send_used
    receive_free -= receive_used
