"""Eq. 2 to 4 of MinCOF, by hand."""

import pytest

from speedwell.controller.policy.reads.rerouting import Tcp, capacity_moved, capacity_staying, gain, loss


def test_what_stays_follows_the_second_equation() -> None:
    # D = 11, W = 8: 11 * 4 + (11 div 4) * 16 + (11 mod 4)^2 / 2
    assert capacity_staying(11, 8) == pytest.approx(44 + 2 * 16 + 4.5)


def test_what_moves_follows_the_fourth_equation() -> None:
    # D = 11, W = 8: D_h = 7; 16 + 4 * 7 + (7 div 4) * 16 + (7 mod 4)^2 / 2
    assert capacity_moved(11, 8) == pytest.approx(16 + 28 + 16 + 4.5)


def test_a_move_that_is_over_before_the_window_has_opened_brings_a_triangle() -> None:
    assert capacity_moved(3, 8) == pytest.approx(4.5)


def test_a_move_pays_if_there_is_time_for_it_to_pay() -> None:
    assert gain(1000, 8, 16) > 0
    assert gain(5, 8, 16) < 0
    assert gain(1000, 8, 8) < 0
    assert loss(1000, 8) == pytest.approx(16, rel=0.5)


def test_the_window_is_the_bandwidth_delay_product_in_segments() -> None:
    assert Tcp().window(100e6) == pytest.approx(100e6 * 350e-6 / 8 / 1500)
