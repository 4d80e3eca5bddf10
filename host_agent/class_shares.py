"""What each class of traffic has of a host's link. Its number is its DSCP, and its class between switches."""

from __future__ import annotations

from typing import NamedTuple

from speedwell.host_agent.channel import PRIORITIES
from speedwell.host_agent.errors import InvalidSetting

LEAST_SHARE = 0.02
"""Of a link, for each class: TCP stays alive where it has to wait."""
WHOLE_PERCENT = 100


class ClassShare(NamedTuple):
    """`share` of a link is the class's for certain. Of what is left it takes all it wants before those with a higher
    `precedence`."""

    share: float
    precedence: int


IN_ORDER = tuple(ClassShare(LEAST_SHARE, PRIORITIES - 1 - number) for number in range(PRIORITIES))
"""The class with the highest number first."""


def shares_of(percents: str) -> tuple[ClassShare, ...]:
    """Of "30,50,20": classes 0, 1 and 2 have these percents of what the least shares of the others leave, and the
    others go before them, in order. Of "": all are in order.

    Raises InvalidSetting if they are not 100 in all, or more than there are classes.
    """
    if not percents:
        return IN_ORDER
    numbers = [int(each) if each.isdecimal() else 0 for each in percents.split(",")]
    if len(numbers) > PRIORITIES or min(numbers) < 1 or sum(numbers) != WHOLE_PERCENT:
        raise InvalidSetting(f"--shares: give at most {PRIORITIES} percents from 1 on that are {WHOLE_PERCENT} in "
                             f"all, as 30,50,20, not {percents!r}")
    left = 1 - LEAST_SHARE * (PRIORITIES - len(numbers))
    return (*(ClassShare(left * number / WHOLE_PERCENT, PRIORITIES - len(numbers)) for number in numbers),
            *IN_ORDER[len(numbers):])
