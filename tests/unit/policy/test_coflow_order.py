"""Orders of coflows, as loads on ports: Sincronia's against the best, and what moving single coflows makes of it."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.coflows import checked_kernels as kernels
from speedwell.controller.policy.coflows.coflow_kernels import Integers, Reals

LOADS = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5).map(
    lambda rows: np.array([[first + 1, *others] for first, *others in rows], float))


def arrays(loads: Reals) -> tuple[Integers, Integers, Integers, Integers, Reals, Reals, Reals]:
    """A flow for each coflow (row) and port (column)."""
    number, ports = loads.shape
    return (np.arange(number) * ports, np.full(number, ports), np.arange(number * ports),
            np.tile(np.arange(ports), number).reshape(-1, 1), loads.flatten(), np.ones(ports), np.zeros(ports))


def sum_of_ends(order: Sequence[int] | Integers, loads: Reals) -> float:
    """On ports that serve one coflow after the other; a coflow waits for those ports only that it uses."""
    own = loads[list(order)]
    return float(np.where(own > 0, own.cumsum(axis=0), 0).max(axis=1).sum())


@given(LOADS)
def test_the_order_is_within_four_times_the_best_of_all_orders(loads: Reals) -> None:
    order = kernels.bssi(np.arange(len(loads)), *arrays(loads))

    assert sorted(order) == list(range(len(loads)))
    assert sum_of_ends(order, loads) <= 4 * min(sum_of_ends(each, loads) for each in permutations(range(len(loads))))


@given(LOADS, st.data())
def test_moving_coflows_leaves_none_that_had_better_stand_elsewhere(loads: Reals, data: st.DataObject) -> None:
    given_order = np.array(data.draw(st.permutations(range(len(loads)))))
    order = kernels.improved(given_order, *arrays(loads), len(loads), 20).tolist()

    assert sorted(order) == list(range(len(loads)))
    assert sum_of_ends(order, loads) <= sum_of_ends(given_order, loads)
    for number in order:
        others = [other for other in order if other != number]
        for place in range(len(order)):
            moved = [*others[:place], number, *others[place:]]
            assert sum_of_ends(moved, loads) >= sum_of_ends(order, loads) * (1 - 1e-6)



def test_a_coflow_is_moved_before_those_that_it_holds_up_less_than_they_it() -> None:
    """On two ports A has 2 and 0 to do, B 2 and 2, C 2 and 4. C goes first by Sincronia's order and ends at 4, B and
    A at 6. Behind both it ends at 6, B at 2, A at 4."""
    loads = np.array([[2.0, 0.0], [2.0, 2.0], [2.0, 4.0]])
    sincronia = kernels.bssi(np.arange(3), *arrays(loads))
    order = kernels.improved(sincronia, *arrays(loads), 3, 10)

    assert sincronia.tolist() == [2, 1, 0]
    assert order.tolist() == [1, 0, 2]
    assert (sum_of_ends(sincronia, loads), sum_of_ends(order, loads)) == (16, 12)
