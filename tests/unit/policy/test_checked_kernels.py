"""The door to compiled code: what does not fit is refused, and nothing goes around it."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.coflows import checked_kernels as kernels
from speedwell.controller.policy.errors import InvalidArrays

ROOT = Path(__file__).parents[3]
LINKS = 6
FAR = 1 << 40
"""An index at which a process has no memory."""


def arrays() -> dict[str, Any]:
    """Two coflows of two flows, each over a link out of a host and one into a host; two pairs of two paths."""
    return {
        "order": np.arange(2), "first": np.array([0, 2]), "count": np.array([2, 2]), "flows": np.arange(4),
        "links": np.array([[0, 3], [1, 4], [0, 4], [2, -1]]), "left": np.array([4.0, 1.0, 3.0, 2.0]),
        "free": np.ones(LINKS), "whole": np.ones(LINKS), "load": np.zeros(LINKS), "rates": np.zeros(4),
        "out": np.zeros(2), "ends": np.array([[0, 3], [1, 4], [0, 4], [2, 3]]), "pair": np.array([0, 0, 1, 1]),
        "pair_first": np.array([0, 2]), "pair_paths": np.array([2, 2]), "inner": np.array([[5], [5], [-1], [5]]),
        "worth": 0.05, "chosen": np.array([-1, 1, 2, 3]), "reach": 5, "passes": 3}


ARGUMENTS = {
    "gammas": "order first count flows links left free whole load out",
    "scaled": "order first count flows links left free whole load rates",
    "backfill": "order first count flows links free whole rates",
    "fill": "order first count flows links left free whole load rates",
    "route": "order first count flows left ends pair pair_first pair_paths inner whole worth chosen load",
    "bssi": "order first count flows links left whole load",
    "improved": "order first count flows links left whole load reach passes",
}
INDICES = {"order": 2, "first": 5, "flows": 4, "links": LINKS, "ends": LINKS, "pair": 2, "pair_first": 4,
           "inner": LINKS, "chosen": 4}
"""From which value on an index of an array is none."""


def call(kernel: str, given_arrays: dict[str, Any]) -> Any:
    return getattr(kernels, kernel)(*(given_arrays[name] for name in ARGUMENTS[kernel].split()))


@pytest.mark.parametrize("kernel", ARGUMENTS)
def test_what_fits_is_computed(kernel: str) -> None:
    call(kernel, arrays())


@pytest.mark.parametrize(("kernel", "name"), [(kernel, name) for kernel, names in ARGUMENTS.items()
                                              for name in names.split() if name in INDICES])
@pytest.mark.parametrize("beyond", [0, FAR])
def test_an_index_of_another_fabric_is_refused_and_nothing_is_changed(kernel: str, name: str, beyond: int) -> None:
    wrong = arrays()
    wrong[name].flat[0] = INDICES[name] + beyond
    before = {key: np.copy(value) for key, value in wrong.items()}

    with pytest.raises(InvalidArrays):
        call(kernel, wrong)

    assert all(np.array_equal(wrong[key], value) for key, value in before.items())


@pytest.mark.parametrize(("kernel", "name"), [(kernel, name) for kernel, names in ARGUMENTS.items()
                                              for name in names.split() if isinstance(arrays()[name], np.ndarray)])
def test_another_type_or_shape_is_refused(kernel: str, name: str) -> None:
    for make in (lambda array: array.astype(np.float32), np.ndarray.tolist, lambda array: array[..., None]):
        wrong = arrays()
        wrong[name] = make(wrong[name])
        with pytest.raises(InvalidArrays):
            call(kernel, wrong)


@pytest.mark.parametrize("wrong", [{"left": np.nan}, {"left": np.inf}, {"left": -1.0}, {"whole": 0.0},
                                   {"whole": np.nan}, {"count": 5}, {"count": -1}])
def test_what_is_no_amount_is_refused(wrong: dict[str, float]) -> None:
    for kernel in ("fill", "bssi", "route"):
        given_arrays = arrays()
        for name, value in wrong.items():
            given_arrays[name][0] = value
        with pytest.raises(InvalidArrays):
            call(kernel, given_arrays)


def test_capacities_too_small_for_floating_point_end_too() -> None:
    odd = arrays()
    odd["whole"][2] = odd["free"][2] = 5e-324
    call("fill", odd)
    assert np.isfinite(odd["rates"]).all()


def test_a_path_over_a_link_without_capacity_is_refused() -> None:
    odd = arrays()
    odd["whole"][5] = 0.0
    with pytest.raises(InvalidArrays, match="capacity"):
        call("route", odd)


@given(st.sampled_from(list(ARGUMENTS)), st.data())
def test_random_numbers_are_refused_or_computed_with(kernel: str, data: Any) -> None:
    wild = arrays()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([name for name in ARGUMENTS[kernel].split()
                                          if isinstance(wild[name], np.ndarray)]))
        place = data.draw(st.integers(0, wild[name].size - 1))
        if wild[name].dtype == np.int64:
            wild[name].flat[place] = data.draw(st.integers(-3, 8))
        elif name != "load":
            wild[name].flat[place] = data.draw(st.floats(-2, 8))
    with suppress(InvalidArrays):
        call(kernel, wild)


@pytest.mark.parametrize("wrong", [("links", 2, -1), ("left", 1, 5e-324)])
def test_a_flow_that_no_link_limits_holds_up_nobody(wrong: tuple[str, int, float]) -> None:
    name, place, value = wrong
    odd = arrays()
    odd[name].flat[place] = value
    call("fill", odd)
    assert np.isfinite(odd["rates"]).all() and odd["rates"][0] > 0 and not odd["load"].any()


def test_nothing_goes_around_the_door() -> None:
    checked = {"gammas", "scaled", "backfill", "fill", "route", "bssi", "improved", "coflow_kernels", "coflow_order"}
    room, door = "speedwell.controller.policy.coflows", "controller/policy/coflows/checked_kernels.py"
    for folder in ("controller", "sim", "cluster", "scripts"):
        for source in (ROOT / folder).rglob("*.py"):
            if str(source.relative_to(ROOT)) == door:
                continue
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(room):
                    names = {alias.name for alias in node.names}
                    assert node.module.endswith("checked_kernels") or not names & checked, f"{source}: {names}"
