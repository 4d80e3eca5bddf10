"""What holds for every test."""

import signal

import pytest


def pytest_sessionstart() -> None:
    """A shell starts background jobs with SIGINT ignored, and every process of ours would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=2))
