"""Several runs of the tests at once share the modules out: whichever is free takes the next (`--share DIRECTORY`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

OPTION = "--share"


class Shares:
    """What one of them does. The directory is all of theirs, and empty at the start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._taken: dict[Path, bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """As pytest's own, of those tests that are taken. The next module is taken before the last test of one runs:
        its fixtures end with it if the next is elsewhere."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted("there were errors during collection")
        if session.config.option.collectonly:
            return True
        tests = self._taken_of(session.items)
        item = next(tests, None)
        while item is not None:
            following = next(tests, None)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _taken_of(self, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        for item in items:
            if item.path not in self._taken:
                self._taken[item.path] = self._take(str(item.path.relative_to(item.config.rootpath)))
            if self._taken[item.path]:
                yield item

    def _take(self, module: str) -> bool:
        try:
            (self._directory / module.replace("/", "~")).mkdir()
        except FileExistsError:
            return False
        return True
