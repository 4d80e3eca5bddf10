"""Traces in the format of coflow-benchmark, and their coflows' completion times when every flow has its fair share.

The first line has the numbers of racks and coflows. Each further line is one coflow: number, arrival in
milliseconds, number of mappers, the mappers' racks, number of reducers, `rack:megabytes` of each reducer (10^6
bytes). A reducer takes an equal part of its data from every mapper.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from speedwell.sim import kernel
from speedwell.sim.errors import InvalidWorkload
from speedwell.sim.state import EVENTS, State, new_state

BITS_PER_MEGABYTE = 8e6


@dataclass(frozen=True, slots=True)
class Coflow:
    """Racks are numbered from 0 up; a rack stands as often as it has mappers or reducers."""

    number: int
    arrival_seconds: float
    mapper_racks: tuple[int, ...]
    reducers: tuple[tuple[int, float], ...]     # (rack, bits)


@dataclass(frozen=True)
class CoflowTrace:
    racks: int
    coflows: tuple[Coflow, ...]


def read_coflows(path: Path) -> CoflowTrace:
    """Raises InvalidWorkload, naming the line."""
    lines = path.read_text().splitlines() or [""]
    racks, coflows, number = 0, [], 0
    for line_number, line in enumerate(lines, start=1):
        try:
            if line_number == 1:
                racks, number = (int(field) for field in line.split())
            else:
                coflows.append(_coflow(line.split(), racks))
        except (ValueError, IndexError):
            raise InvalidWorkload(f"{path}, line {line_number}: not a line of a coflow-benchmark trace") from None
    if len(coflows) != number or racks < 1:
        raise InvalidWorkload(f"{path}: line 1 announces {number} coflows on {racks} racks, {len(coflows)} follow")
    return CoflowTrace(racks, tuple(coflows))


def _coflow(fields: list[str], racks: int) -> Coflow:
    mappers = int(fields[2])
    reducers = int(fields[3 + mappers])
    if mappers < 1 or reducers < 1 or len(fields) != 4 + mappers + reducers:
        raise ValueError
    sizes = [(_rack(rack, racks), float(megabytes) * BITS_PER_MEGABYTE)
             for rack, megabytes in (field.split(":") for field in fields[4 + mappers :])]
    arrival_seconds = int(fields[1]) / 1e3
    if arrival_seconds < 0 or not all(0 < bits < math.inf for _, bits in sizes):
        raise ValueError
    return Coflow(int(fields[0]), arrival_seconds, tuple(_rack(rack, racks) for rack in fields[3 : 3 + mappers]),
                  tuple(sizes))


def _rack(field: str, racks: int) -> int:
    """Traces count from 0 or from 1: the last rack of the latter becomes number 0."""
    if not 0 <= int(field) <= racks:
        raise ValueError
    return int(field) % racks


@dataclass(frozen=True)
class FairRun:
    """`completion_seconds` by coflow number, from arrival to the last byte."""

    completion_seconds: dict[int, float]
    flows: int
    events: int


def run_fair(trace: CoflowTrace, port_bps: float) -> FairRun:
    """All flows of all coflows at max-min fair rates; only the racks' ports limit them."""
    flows = _flows(trace)
    state = _state(trace.racks, port_bps, len(flows.starts))
    kernel.run_trace(state, flows.starts, flows.routes, flows.sizes_bits)
    completion: dict[int, float] = {}
    took = (state.flows["finished"] - flows.starts).tolist()
    for number, seconds in zip(flows.coflows.tolist(), took, strict=True):
        completion[number] = max(completion.get(number, 0.0), seconds)
    return FairRun(completion, len(flows.starts), int(state.counters[EVENTS]))


@dataclass(frozen=True)
class FairRates:
    """`rates_bps[second, port]`: what each rack's port sends (first half) and receives (second half) on average.

    `finished_seconds` says when the reducers of a coflow, by its number and their rack, have all of their data; those
    that have not by the end are left out.
    """

    rates_bps: npt.NDArray[np.float64]
    finished_seconds: dict[tuple[int, int], float]


def fair_rates(trace: CoflowTrace, port_bps: float, seconds: int) -> FairRates:
    """The first `seconds` of what `run_fair` runs, second by second."""
    flows = _flows(trace)
    state = _state(trace.racks, port_bps, len(flows.starts))
    carried_bits = np.zeros((seconds, 2 * trace.racks))
    kernel.sample_trace(state, flows.starts, flows.routes, flows.sizes_bits, 1.0, carried_bits)
    finished: dict[tuple[int, int], float] = {}
    for number, route, end in zip(flows.coflows.tolist(), flows.routes.tolist(), state.flows["finished"].tolist(),
                                  strict=True):
        key = (number, route % trace.racks)
        finished[key] = max(finished.get(key, 0.0), math.inf if math.isnan(end) else end)
    return FairRates(np.diff(carried_bits, axis=0, prepend=0.0),
                     {key: end for key, end in finished.items() if end < math.inf})


class _Flows(NamedTuple):
    """In order of arrival; a route is its mapper's rack times the number of racks, and its reducer's rack."""

    starts: npt.NDArray[np.float64]
    routes: npt.NDArray[np.int64]
    sizes_bits: npt.NDArray[np.float64]
    coflows: npt.NDArray[np.int64]


def _flows(trace: CoflowTrace) -> _Flows:
    flows = [(coflow.arrival_seconds, mapper * trace.racks + reducer, bits / len(coflow.mapper_racks), coflow.number)
             for coflow in trace.coflows for reducer, bits in coflow.reducers for mapper in coflow.mapper_racks]
    flows.sort(key=lambda flow: flow[0])
    return _Flows(*map(np.array, zip(*flows, strict=True)))


def _state(racks: int, port_bps: float, flows: int) -> State:
    state = new_state([port_bps] * (2 * racks), racks * racks, 2, flows)
    state.routes["length"] = 2
    state.route_links[:, 0] = np.repeat(np.arange(racks), racks)
    state.route_links[:, 1] = racks + np.tile(np.arange(racks), racks)
    return state
