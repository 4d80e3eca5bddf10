"""Slices are as exact as whoever keeps them is on time."""

import logging
import os

import click

option = click.option("--realtime", is_flag=True,
                      help="Run before all other processes (SCHED_FIFO): slices are held closer.")
log = logging.getLogger(__name__)


def run_before_all_others() -> None:
    """The calling thread; threads and processes that it starts later are as any other."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as error:
        log.warning("--realtime: the kernel refuses it (%s): slices are held less closely", error.strerror)
