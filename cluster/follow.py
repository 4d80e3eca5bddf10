"""Watching something that goes on in the background until nothing of it is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from speedwell.cluster.progress import Meter
from speedwell.fs import units

POLL_SECONDS = 0.5
LINE_SECONDS = 2.0
"""Between two lines where there is no terminal."""


def follow(what: str, left: Callable[[], int], seconds: float, counts: str) -> int:
    """Show how `left` (so many `entries`, or `bytes`) comes down to nothing; returns what is left of it after
    `seconds`. On a terminal that is a bar, elsewhere a line whenever some of it is done."""
    deadline = time.monotonic() + seconds
    now = total = left()
    told, told_at = now, float("-inf")
    with Meter(what, total, counts) as meter:
        while now and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            before, now = now, left()
            meter.advance(before - now)
            total = max(total, now)
            if not sys.stderr.isatty() and now != told and (not now or time.monotonic() - told_at >= LINE_SECONDS):
                told, told_at = now, time.monotonic()
                amounts = (units.size(total - now), units.size(total)) if counts == "bytes" else \
                    (str(total - now), f"{total} replicas")
                click.echo(f"{what}: {amounts[0]} of {amounts[1]} moved")
    return now
