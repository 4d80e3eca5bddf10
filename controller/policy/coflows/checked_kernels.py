"""The one door to the compiled code of `coflow_kernels` and `coflow_order`.

Compiled code reads and writes where an index says, whatever is there. The functions at the end have the names and
arguments of those behind them, and raise InvalidArrays before anything is changed if an array has another type or
length than is needed, or an index does not fit. They look at the coflows that they are asked for and at their flows,
nothing else.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, cast

import numpy as np

from speedwell.controller.policy.coflows import coflow_kernels, coflow_order
from speedwell.controller.policy.compiled import Function, Integers, Reals
from speedwell.controller.policy.compiled import compiled_for_threads as compiled
from speedwell.controller.policy.errors import InvalidArrays

_PROBLEMS = ("", "a coflow has no row in `first` and `count`", "a coflow's flows lie outside of `flows`",
             "a flow has no row", "a flow uses a link that there is not",
             "what a flow has left is no number from 0 up", "a link has no capacity",
             "a flow's pair has paths that there are not", "a flow has a path that there is not",
             "a coflow stands twice in an order")
INTEGERS = {"coflows", "order", "first", "count", "flows", "pair", "pair_first", "pair_paths", "chosen"}
REALS = {"left", "free", "whole", "load", "rates", "out"}
TABLES = {"links", "ends", "inner"}


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
def _routing_problem(order: Integers, first: Integers, count: Integers, flows: Integers, ends: Integers,
                     pair: Integers, pair_first: Integers, pair_paths: Integers, inner: Integers, whole: Reals,
                     chosen: Integers) -> int:
    for path in range(inner.shape[0]):
        for position in range(inner.shape[1]):
            link = inner[path, position]
            if link >= len(whole):
                return 4
            if link >= 0 and not 0.0 < whole[link] < np.inf:
                return 6
    for c in order:
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


def _checked(kernel: Function) -> Function:
    """The door to a kernel, of whose arrays the names say what they have to be."""
    names = tuple(signature(kernel).parameters)
    routing = tuple(signature(_routing_problem).parameters)
    table, wanted = ("ends" if "ends" in names else "links"), names[0]

    def door(*given: Any) -> Any:
        arrays: dict[str, Any] = dict(zip(names, given, strict=True))
        lengths = {"count": "first", "left": table, "free": "whole", "load": "whole", "rates": table, "pair": table,
                   "chosen": table, "pair_paths": "pair_first", "out": wanted}
        for name in TABLES & arrays.keys():
            _require_table(name, arrays[name])
        for name in (INTEGERS | REALS) & arrays.keys():
            _require_shape(name, arrays[name], np.int64 if name in INTEGERS else np.float64,
                           len(arrays[lengths[name]]) if name in lengths else None)
        first, whole = arrays["first"], arrays["whole"]
        _refuse(_problem(arrays[wanted], first, arrays["count"], arrays["flows"], arrays[table],
                         arrays["left" if "left" in names else "rates"], arrays.get("free", whole), whole,
                         np.zeros(len(first), np.int64)))
        if table == "ends":
            if arrays["ends"].shape[1] < 2:
                raise InvalidArrays("ends: a flow has a link at each end")
            _refuse(_routing_problem(*[arrays[name] for name in routing]))
        return kernel(*given)

    return cast(Function, door)


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


gammas, scaled = _checked(coflow_kernels.gammas), _checked(coflow_kernels.scaled)
backfill, fill = _checked(coflow_kernels.backfill), _checked(coflow_kernels.fill)
route = _checked(coflow_kernels.route)
bssi, improved = _checked(coflow_order.bssi), _checked(coflow_order.improved)
