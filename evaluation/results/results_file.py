"""The results of an experiment on disk: JSON lines, added as runs finish, found again by their parameters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speedwell.sim.errors import InvalidSetting


class ResultsFile:
    """One result a line, each with the parameters of its run under `task`. Nothing finished is lost by a kill."""

    def __init__(self, path: Path, resume: bool, force: bool = False,
                 begin: Callable[[], None] | None = None) -> None:
        """`resume` goes on with a file that exists, `force` replaces it when the first result is there. `begin` is
        called before that one is written. Raises InvalidSetting if the file exists and neither is set, or cannot be
        read."""
        if path.exists() and not (resume or force):
            raise InvalidSetting(f"{path} exists: give --resume to go on with it, --force to replace it, or another "
                                 "--output")
        self._path, self._begin = path, begin
        self._mode = "w" if force else "a"
        self._done: dict[str, dict[str, Any]] = {}
        if path.exists() and not force:
            self._read()

    def get(self, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The result of the run with these parameters, if it has finished."""
        return self._done.get(_key(parameters))

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result; it is in the file when this returns."""
        if self._begin is not None:
            self._begin()
            self._begin = None
        with self._path.open(self._mode) as file:
            file.write(json.dumps(result) + "\n")
        self._mode = "a"
        self._done[_key(result["task"])] = result

    def _read(self) -> None:
        whole = _text(self._path)
        kept = whole[: whole.rfind("\n") + 1]
        if kept != whole:                       # a killed run left half a line, which would spoil the next one
            self._path.write_text(kept)
        self._done = {_key(result["task"]): result for result in read_results(self._path)}


def read_results(path: Path) -> list[dict[str, Any]]:
    """All whole results of a file, in its order. Raises InvalidSetting, naming the line that is none."""
    text = _text(path)
    results = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            result = json.loads(line)
            _key(result["task"])
        except (ValueError, KeyError, TypeError):
            raise InvalidSetting(f"{path}: line {number} is not a result of an experiment: remove it, or give "
                                 "--force to begin anew") from None
        results.append(result)
    return results


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not text"
        raise InvalidSetting(f"{path} cannot be read: {why}") from None


def _key(parameters: dict[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)
