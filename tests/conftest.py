"""What holds for every test."""

import itertools
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs import insecure
from tests import shares, skips
from tests.local_cluster import OWNERS_VARIABLE
from tests.logs import FABRIC, Logs

LOGS = pytest.StashKey[Logs]()
FAILED = pytest.StashKey[bool]()
ENDS = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    if (seconds := session.config.getoption("--within")) is not None:
        session.config.stash[ENDS] = time.monotonic() + seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(ENDS, float("inf")):
        pytest.skip("the time is over: `scripts/test tests/unit` runs all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, metavar="SECONDS", help="Skip what has not begun by then; finding tests "
                     "does not count.")
    parser.addoption(skips.OPTION, action="store_true", help="A skip that is not in tests/skips.py is a failure.")
    parser.addoption("--metadata-servers", type=int, metavar="N", help="So many nameservers own the namespace of "
                     "each test's cluster that does not say who keeps it.")
    parser.addoption("--seed", type=int, help="Of tests that draw at random; one that fails prints its own.")
    parser.addoption(shares.OPTION, metavar="DIRECTORY", type=Path,
                     help="Leave the modules that others with this directory have taken, and take the rest.")


def pytest_configure(config: pytest.Config) -> None:
    if directory := config.getoption(shares.OPTION):
        config.pluginmanager.register(shares.Shares(directory))
    if number := config.getoption("--metadata-servers"):
        os.environ[OWNERS_VARIABLE] = str(number)


def pytest_sessionstart() -> None:
    """Servers that tests start by hand need no identity. A shell starts background jobs with SIGINT ignored, which
    every process of ours would inherit."""
    os.environ[insecure.VARIABLE] = insecure.FABRIC
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _logs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytestconfig.stash[LOGS] = Logs(tmp_path_factory.getbasetemp(), FABRIC)


@pytest.fixture(name="seed")
def _seed(pytestconfig: pytest.Config) -> int:
    given: int | None = pytestconfig.getoption("--seed")
    seed = int.from_bytes(os.urandom(4), "big") if given is None else given
    print(f"seed: --seed={seed} draws the same")
    return seed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption(skips.OPTION):
        skips.refuse(report)
    item.stash[FAILED] = report.failed and report.when == "call"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport,
                                                                         pytest.CollectReport]:
    report = yield
    if collector.config.getoption(skips.OPTION):
        skips.refuse(report)
    return report


class _OutsideItsModule:
    """In place of the next test: one that needs nothing of what the module of `item` shares."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def listchain(self) -> list[Any]:
        return list(itertools.takewhile(lambda node: not isinstance(node, pytest.Module), self._item.listchain()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """A traceback in a log of a process that a test started is a failure of that test.

    After one that failed the fixtures of its module are made anew: the next does not meet what it left in them."""
    try:
        if item.stash.get(FAILED, False):
            item.session._setupstate.teardown_exact(_OutsideItsModule(item))    # type: ignore[arg-type]
    finally:
        yield   # what is around the module ends in any case: pytest refuses the next test where it is left
    logs = item.config.stash.get(LOGS, None)
    if logs is None:
        return
    tracebacks = logs.tracebacks()
    if nextitem is None or nextitem.path != item.path:
        logs.look_for_no_more()
    if tracebacks and not item.get_closest_marker("tracebacks"):
        pytest.fail("\n".join(tracebacks), pytrace=False)
