"""What holds for every test."""

import signal
from collections.abc import Generator

import pytest

from tests.logs import Logs

LOGS = pytest.StashKey[Logs]()


def pytest_sessionstart() -> None:
    """A shell starts background jobs with SIGINT ignored, and every process of ours would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _logs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytestconfig.stash[LOGS] = Logs(tmp_path_factory.getbasetemp())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """A traceback in a log of a process that a test started is a failure of that test."""
    yield
    logs = item.config.stash.get(LOGS, None)
    if logs is None:
        return
    tracebacks = logs.tracebacks()
    if nextitem is None or nextitem.path != item.path:
        logs.look_for_no_more()
    if tracebacks and not item.get_closest_marker("tracebacks"):
        pytest.fail("\n".join(tracebacks), pytrace=False)
