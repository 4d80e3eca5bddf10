"""Traces and results of others, which stand beside the project and are not part of it."""

import csv
from pathlib import Path

import numpy as np
import pytest

from speedwell.sim.state import State, new_state

_DIRECTORY = Path(__file__).resolve().parents[3].parent / "shared" / "reference"


def reference_file(name: str) -> Path:
    """The path of a reference file; skips the test where it is missing."""
    path = _DIRECTORY / name
    if not path.exists():
        pytest.skip(f"the reference file ../shared/reference/{name} is not there")
    return path


def simgrid_trace(name: str) -> tuple[State, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(network, starts, routes, sizes, completion times) of a SimGrid run, in order of starts. Units are
    bytes, as in the file."""
    with reference_file(name).open() as file:
        rows = list(csv.reader(line for line in file if not line.startswith("#")))
    rows.sort(key=lambda row: float(row[1]))
    links: dict[str, int] = {}
    routes: dict[tuple[str, ...], int] = {}
    route_of = []
    for row in rows:
        route = tuple(row[5].split("|"))
        route_of.append(routes.setdefault(route, len(routes)))
        for link in route:
            links.setdefault(link, len(links))
    capacities = [1.25e8 if link[0] in "hr" else 6.25e7 for link in links]
    state = new_state(capacities, len(routes), max(map(len, routes)), len(rows))
    for route, number in routes.items():
        state.routes["length"][number] = len(route)
        state.route_links[number, : len(route)] = [links[link] for link in route]
    columns = [np.array([float(row[i]) for row in rows]) for i in (1, 4, 6)]
    return state, columns[0], np.array(route_of), columns[1], columns[2]
