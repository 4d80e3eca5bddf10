"""Reading from several replicas at once (Rizvi et al., "Mayflower", section 4.3).

The first subflow is chosen as if it were alone and tried out as a temporary flow; the next is chosen among the
replicas that are left, and tried out as well. It is kept if all subflows together then get more than those before
it did. Whatever is decided, the temporary flows and what they changed are rolled back: the parts that were kept
are reported as flows like any other.

The paper stops at two. Here `most_parts` says how many, by the same rule for each further one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from speedwell.controller.policy.errors import NoPath
from speedwell.controller.policy.reads.mayflower import Mayflower
from speedwell.controller.policy.reads.selection_request import Selection, SelectionRequest

WORTH = 0.001
"""The least gain of a further part, of what those before it get together. Shares are estimates: for the few hundred
bit/s that cross an idle link, half of a read was left to a server whose own link is full."""


@dataclass(frozen=True, slots=True)
class Subflow:
    """A subflow: where it reads from, and its share S_i of the read's size in bits."""

    selection: Selection
    size_bits: float


def select_parts(
    mayflower: Mayflower,
    select: Callable[[SelectionRequest], Selection],
    request: SelectionRequest,
    now: float,
    most_parts: int,
    client_ports: Sequence[int] | None = None,
) -> list[Subflow]:
    """One to `most_parts` parts from different replicas whose sizes let them end together: S_i = d b_i / b.

    `select` is the selection algorithm for one flow. Part i ends at `client_ports[i]`, all of them at the
    request's port if none are given: a path that is hashed from the connection needs to know. Raises what
    `select` raises for the whole request.
    """
    chosen = [select(request)]
    if most_parts == 1 or math.isinf(chosen[0].estimated_bps):
        return [Subflow(chosen[0], request.size_bits)]
    with mayflower.trial() as trial:
        shares = [trial.add(chosen[0].path, request.size_bits, now)]
        while len(chosen) < min(most_parts, len(request.replicas)):
            used = {selection.replica.host for selection in chosen}
            left = tuple(replica for replica in request.replicas if replica.host not in used)
            port = client_ports[len(chosen)] if client_ports else request.client_port
            candidate = _try_select(select, replace(request, replicas=left, client_port=port))
            if candidate is None or math.isinf(candidate.estimated_bps):
                break
            trial.add(candidate.path, request.size_bits, now)
            if sum(trial.shares_bps()) < sum(shares) * (1 + WORTH):
                break
            shares = trial.shares_bps()
            chosen.append(candidate)
    combined_bps = sum(shares)
    return [
        Subflow(replace(selection, estimated_bps=share), request.size_bits * share / combined_bps)
        for selection, share in zip(chosen, shares, strict=True)
    ]


def _try_select(select: Callable[[SelectionRequest], Selection], request: SelectionRequest) -> Selection | None:
    try:
        return select(request)
    except NoPath:
        return None
