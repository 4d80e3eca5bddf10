"""The one door to the compiled code of `coflow_kernels` and `coflow_order`.

Compiled code reads and writes where an index says, whatever is there. These functions have the names and arguments of
those behind them, and raise InvalidArrays before anything is changed if an array has another type or length than is
needed, or an index does not fit. They look at the coflows that they are asked for and at their flows, nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from speedwell.controller.policy.coflows import coflow_kernels, coflow_order
from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.compiled import compiled_for_threads as compiled
from speedwell.controller.policy.errors import InvalidArrays

_PROBLEMS = ("", "a coflow has no row in `first` and `count`", "a coflow's flows lie outside of `flows`",
             "a flow has no row", "a flow uses a link that there is not",
             "what a flow has left is no number from 0 up", "a link has no capacity",
             "a flow's pair has paths that there are not", "a flow has a path that there is not",
             "a coflow stands twice in an order")


@compiled
def _problem(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
             free: Reals, whole: Reals, seen: Integers) -> int:
    rows, width = links.shape
    for c in coflows:
        if c < 0 or c >= len(first):
            return 1
        if seen[c]:
            return 9
        seen[c] = 1
        if first[c] < 0 or not 0 <= count[c] <= rows or first[c] + count[c] > len(flows):
            return 2
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            if f < 0 or f >= rows:
                return 3
            if not 0.0 <= left[f] < np.inf:
                return 5
            for position in range(width):
                link = links[f, position]
                if link < 0:
                    break
                if link >= len(whole):
                    return 4
                if not (0.0 < whole[link] < np.inf and -np.inf < free[link] < np.inf):
                    return 6
    return 0


@compiled
def _routing_problem(coflows: Integers, first: Integers, count: Integers, flows: Integers, ends: Integers,
                     pair: Integers, pair_first: Integers, pair_paths: Integers, inner: Integers, whole: Reals,
                     chosen: Integers) -> int:
    for path in range(inner.shape[0]):
        for position in range(inner.shape[1]):
            link = inner[path, position]
            if link >= len(whole):
                return 4
            if link >= 0 and not 0.0 < whole[link] < np.inf:
                return 6
    for c in coflows:
        for i in range(first[c], first[c] + count[c]):
            f = flows[i]
            if ends[f, 0] < 0 or ends[f, 1] < 0:
                return 4
            p = pair[f]
            if p < 0 or p >= len(pair_first) or pair_first[p] < 0 or pair_first[p] + pair_paths[p] > inner.shape[0]:
                return 7
            if chosen[f] < -1 or chosen[f] >= inner.shape[0]:
                return 8
    return 0


def gammas(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
           free: Reals, whole: Reals, load: Reals, out: Reals) -> None:
    """See `coflow_kernels.gammas`. Raises InvalidArrays."""
    _require_valid(coflows, first, count, flows, links, left, free, whole, load)
    _require_shape("out", out, np.float64, len(coflows))
    coflow_kernels.gammas(coflows, first, count, flows, links, left, free, whole, load, out)


def scaled(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
           free: Reals, whole: Reals, load: Reals, rates: Reals) -> None:
    """See `coflow_kernels.scaled`. Raises InvalidArrays."""
    _require_valid(order, first, count, flows, links, left, free, whole, load)
    _require_shape("rates", rates, np.float64, len(links))
    coflow_kernels.scaled(order, first, count, flows, links, left, free, whole, load, rates)


def backfill(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, free: Reals,
             whole: Reals, rates: Reals) -> None:
    """See `coflow_kernels.backfill`. Raises InvalidArrays."""
    _require_valid(order, first, count, flows, links, rates, free, whole, whole)
    coflow_kernels.backfill(order, first, count, flows, links, free, whole, rates)


def fill(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
         free: Reals, whole: Reals, load: Reals, rates: Reals) -> None:
    """See `coflow_kernels.fill`. Raises InvalidArrays."""
    _require_valid(order, first, count, flows, links, left, free, whole, load)
    _require_shape("rates", rates, np.float64, len(links))
    coflow_kernels.fill(order, first, count, flows, links, left, free, whole, load, rates)


def route(order: Integers, first: Integers, count: Integers, flows: Integers, left: Reals, ends: Integers,
          pair: Integers, pair_first: Integers, pair_paths: Integers, inner: Integers, whole: Reals, worth: float,
          chosen: Integers, load: Reals) -> int:
    """See `coflow_kernels.route`. Raises InvalidArrays."""
    _require_valid(order, first, count, flows, ends, left, whole, whole, load)
    for name, array, length in (("pair", pair, len(ends)), ("chosen", chosen, len(ends)),
                                ("pair_first", pair_first, len(pair_first)),
                                ("pair_paths", pair_paths, len(pair_first))):
        _require_shape(name, array, np.int64, length)
    _require_table("inner", inner)
    if ends.shape[1] < 2:
        raise InvalidArrays("ends: a flow has a link at each end")
    _refuse(_routing_problem(order, first, count, flows, ends, pair, pair_first, pair_paths, inner, whole, chosen))
    return coflow_kernels.route(order, first, count, flows, left, ends, pair, pair_first, pair_paths, inner, whole,
                                float(worth), chosen, load)


def bssi(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
         whole: Reals, load: Reals) -> Integers:
    """See `coflow_order.bssi`. Raises InvalidArrays."""
    _require_valid(coflows, first, count, flows, links, left, whole, whole, load)
    return coflow_order.bssi(coflows, first, count, flows, links, left, whole, load)


def improved(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
             whole: Reals, load: Reals, reach: int, passes: int) -> Integers:
    """See `coflow_order.improved`. Raises InvalidArrays."""
    _require_valid(order, first, count, flows, links, left, whole, whole, load)
    return coflow_order.improved(order, first, count, flows, links, left, whole, load, int(reach), int(passes))


def _require_valid(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers,
                   left: Reals, free: Reals, whole: Reals, load: Reals) -> None:
    for name, array, length in (("coflows", coflows, None), ("first", first, None), ("count", count, len(first)),
                                ("flows", flows, None)):
        _require_shape(name, array, np.int64, length)
    _require_table("links", links)
    for name, reals, length in (("left", left, len(links)), ("whole", whole, None), ("free", free, len(whole)),
                                ("load", load, len(whole))):
        _require_shape(name, reals, np.float64, length)
    _refuse(_problem(coflows, first, count, flows, links, left, free, whole, np.zeros(len(first), np.int64)))


def _require_shape(name: str, array: Any, kind: type, length: int | None) -> None:
    if (not isinstance(array, np.ndarray) or array.dtype != kind or array.ndim != 1
            or not array.flags.c_contiguous or length not in (None, len(array))):
        number = "" if length is None else f"{length} "
        raise InvalidArrays(f"{name}: needs to be an array of {number}{kind.__name__}")


def _require_table(name: str, array: Any) -> None:
    if (not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 2
            or not array.flags.c_contiguous):
        raise InvalidArrays(f"{name}: needs to be a table of int64")


def _refuse(problem: int) -> None:
    if problem:
        raise InvalidArrays(_PROBLEMS[problem])
