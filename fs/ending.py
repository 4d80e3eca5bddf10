"""The one way in which commands and daemons end.

The interpreter's own end frees what threads use that still run: one that comes back from a system call then, on a
busy machine, dies of a segmentation fault, and the exit status with it.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


def run_to_the_end(work: Callable[[], int]) -> NoReturn:
    """Run `work` and end the process with the status that it returns, or raises SystemExit with. Threads that are not
    daemons end before, what is registered with atexit is done, what was printed is flushed."""
    status = 1
    try:
        status = work()
    except SystemExit as end:
        status = _status_of(end)
    except KeyboardInterrupt:
        print(f"{os.path.basename(sys.argv[0])}: interrupted", file=sys.stderr)  # noqa: PTH119
        status = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(BaseException):
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Ctrl-C inside raises KeyboardInterrupt at the block's end. For imports, where libraries swallow it."""
    interrupts: list[int] = []
    former = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or former is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if interrupts:
        raise KeyboardInterrupt


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
