"""The results of an experiment on disk: JSON lines, added as runs finish, found again by their parameters."""

import json
from pathlib import Path
from typing import Any

from sim.errors import InvalidSetting


class ResultsFile:
    """One result a line, each with the parameters of its run under `task`. Nothing finished is lost by a kill."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Raises InvalidSetting if the file exists and `resume` is not set."""
        if path.exists() and not resume:
            raise InvalidSetting(f"{path} exists: give --resume to go on with it, or another --output")
        self._path = path
        self._done: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def get(self, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The result of the run with these parameters, if it has finished."""
        return self._done.get(_key(parameters))

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result; it is in the file when this returns."""
        with self._path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        self._done[_key(result["task"])] = result

    def _read(self) -> None:
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:                       # a killed run left half a line, which would spoil the next one
            self._path.write_text(whole)
        for line in whole.splitlines():
            result = json.loads(line)
            self._done[_key(result["task"])] = result


def _key(parameters: dict[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)
