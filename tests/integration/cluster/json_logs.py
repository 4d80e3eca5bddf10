"""What processes log where SPEEDWELL_LOG_FORMAT is `json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def json_lines(log: Path) -> Iterator[dict[str, Any]]:
    """All of a log but `ready ADDRESS`, which a process prints at each start. Fails for other lines."""
    for line in log.read_text().splitlines():
        if line.startswith("ready "):
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            raise AssertionError(f"{log.name}: {line}") from None
        assert {"time", "level", "logger", "message"} <= entry.keys(), f"{log.name}: {line}"
        yield entry
