"""What holds for every test."""

import signal


def pytest_sessionstart() -> None:
    """A shell starts background jobs with SIGINT ignored, and every process of ours would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
