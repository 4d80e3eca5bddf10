"""Dependencies point one way: which room may import which, and what from outside.

Every import counts, also one in a function or for types only: a circle of types is one that a reader has to walk.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("controller", "fs", "fuse_mount", "coflow", "host_agent", "topo", "cluster", "evaluation", "sim")

FLOOR = {"errors", "leadership", "loops", "services", "settings", "secure", "validation", "application", "reader"}
"""The modules of the controller itself that its rooms stand on. All others stand above the rooms."""
GROUND = ("switches", "topology", "counters", "tables", "rest", "network")
SYSTEMS = ("reads", "coflows", "queues", "placements", "timeslices", "metadata", "storage", "page")

MAY_IMPORT = {
    "controller.policy": set(),
    "controller.errors": set(),
    "controller.loops": set(),
    "controller.leadership": set(),
    "controller.tenure": set(),
    "controller.reader": set(),
    "controller.secure": {"fs"},
    "controller.services": {"controller.errors"},
    "controller.validation": set(),
    "controller.own_policies": {"controller.policy"},
    "controller.settings": {"controller.errors", "controller.own_policies", "controller.policy",
                            "controller.validation", "fs"},
    "controller.application": {"controller.loops", "controller.services"},
    "controller.policy_options": {"controller.own_policies", "controller.policy"},
    "controller.rest": {"controller", "fs"},
    "controller.switches": {"controller", "fs"},
    "controller.topology": {"controller", "switches", "rest"},
    "controller.counters": {"controller", "switches", "topology", "rest"},
    "controller.tables": {"controller", "switches", "topology", "counters", "rest"},
    "controller.network": {"controller", "switches", "topology", "counters", "rest"},
    **{f"controller.{system}": {"controller", *GROUND} for system in SYSTEMS},
    "coflow": set(),
    "fs": {"coflow"},
    "fuse_mount": {"fs"},
    "host_agent": {"coflow", "fs"},
    "topo": {"controller.validation", "fs"},
    "sim": {"controller.own_policies", "controller.policy", "topo"},
    "evaluation": {"cluster", "coflow", "fs", "host_agent", "sim", "topo", "controller.own_policies",
                   "controller.policy", "controller.policy_options", "controller.queues", "controller.settings",
                   "controller.switches", "controller.validation"},
    "cluster": {"coflow", "fs", "fuse_mount", "host_agent", "topo", "controller.own_policies", "controller.policy",
                "controller.policy_options", "controller.settings", "controller.switches", "controller.validation",
                "controller.queues"},
}
"""The rooms that a room may import. `controller` stands for policy and FLOOR, a bare word for a room below it.
Who is not listed here may import everything."""
EXTRAS = {("controller.coflows", "coflow"), ("controller.coflows", "fs"), ("controller.switches", "fs"),
          ("controller.topology", "fs"),
          ("controller.timeslices", "coflow"), ("controller.timeslices", "fs"),
          ("controller.timeslices", "host_agent"), ("controller.timeslices", "controller.own_policies"),
          ("controller.timeslices", "controller.policy_options")}

LIBRARIES = {
    "controller.policy": {"numpy", "numba", "networkx"},
    "coflow": set(),
    "sim": {"numpy", "numba", "matplotlib", "distributed"},
    "fs": {"click", "crc32c", "cryptography", "fsspec", "google", "grpc", "opentelemetry", "plyvel",
           "prometheus_client", "pyroute2"},
    "fuse_mount": {"click", "mfusepy", "fuse", "prometheus_client"},
    "host_agent": {"click", "prometheus_client"},
}
"""What a room may use beside the standard library; those that are not listed may use anything."""
IMPURE = {"asyncio", "datetime", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "secrets",
          "select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid"}
"""Clock, files, sockets, processes: a decision that reads them cannot be simulated."""


class Tree:
    """The imports of a source tree: by module, what it imports and in which line."""

    def __init__(self, root: Path, folders: Iterable[str]) -> None:
        files = {_module(path.relative_to(root)): path
                 for folder in folders for path in (root / folder).rglob("*.py")}
        self.modules = frozenset(files)
        self.imports = {module: list(self._imports(path)) for module, path in files.items()}

    def _imports(self, path: Path) -> Iterator[tuple[str, int]]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield self._known(alias.name), node.lineno
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None and node.level == 0, f"{path}:{node.lineno}: a relative import"
                module = self._known(node.module)
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in self.modules or module == "random" else module, node.lineno

    def _known(self, name: str) -> str:
        """The name of a module as it is in `modules`; one of ours without its first word stays strange."""
        return f"?{name}" if name.partition(".")[0] in FOLDERS else name.removeprefix("speedwell.")

    def wrong(self) -> list[str]:
        """What is against the tables above, and all circles, as sentences."""
        return sorted([*self._wrong_rooms(), *self._wrong_libraries(), *self._circles()])

    def _wrong_rooms(self) -> Iterator[str]:
        for module, line, used in self._inside():
            room, other = room_of(module), room_of(used)
            if room in MAY_IMPORT and room != other and other not in _allowed(room):
                yield f"{module}:{line} imports {used}: {room} may not import {other}"

    def _wrong_libraries(self) -> Iterator[str]:
        for module, imports in self.imports.items():
            room = room_of(module)
            for used, line in imports:
                top = used.partition(".")[0]
                if used.startswith("?"):
                    yield f"{module}:{line} imports {used[1:]}: its name is speedwell.{used[1:]}"
                    continue
                if used in self.modules or top in FOLDERS:
                    continue
                if top in sys.stdlib_module_names:
                    is_impure = top in IMPURE or (top == "random" and used != "random.Random")
                    if room == "controller.policy" and is_impure:
                        yield f"{module}:{line} imports {used}: policies know no clock, file, socket or chance"
                elif room in LIBRARIES and top not in LIBRARIES[room]:
                    yield f"{module}:{line} imports {used}: {room} may not use {top}"

    def _circles(self) -> Iterator[str]:
        modules = nx.DiGraph((module, used) for module, _, used in self._inside())
        rooms = nx.DiGraph((a, b) for a, b in ((room_of(a), room_of(b)) for a, b in modules.edges) if a != b)
        for kind, graph in (("modules", modules), ("rooms", rooms)):
            for circle in nx.strongly_connected_components(graph):
                if len(circle) > 1:
                    yield f"a circle of {kind}: {', '.join(sorted(circle))}"

    def _inside(self) -> Iterator[tuple[str, int, str]]:
        for module, imports in self.imports.items():
            for used, line in imports:
                if used in self.modules and used != module:
                    yield module, line, used


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """A folder, or in the controller a folder or a module of it."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "controller" else parts[0]


def _allowed(room: str) -> set[str]:
    allowed = {other for each, other in EXTRAS if each == room}
    for word in MAY_IMPORT[room]:
        if word == "controller":
            allowed |= {"controller.policy", *(f"controller.{module}" for module in FLOOR)}
        else:
            allowed.add(f"controller.{word}" if word in GROUND else word)
    return allowed


def test_no_room_imports_what_it_may_not_and_there_are_no_circles() -> None:
    assert Tree(ROOT, FOLDERS).wrong() == []


def test_dataservers_know_no_client() -> None:
    """What they read of each other they are given at the start (`fs.copy_source`)."""
    imports = Tree(ROOT, FOLDERS).imports
    assert [(module, used) for module in imports if module.startswith("fs.dataserver.")
            for used, _ in imports[module] if used.startswith("fs.client")] == []


@pytest.mark.parametrize(("program", "needless"), [
    ("fs.dataserver.main", {"grpc", "pyroute2", "speedwell.fs.nameserver.namespace.namespace"}),
    ("fuse_mount.main", {"grpc", "pyroute2", "plyvel", "speedwell.fs.nameserver"}),
    ("fs.nameserver.main", {"pyroute2"}),
])
def test_no_process_waits_at_its_start_for_libraries_that_it_does_not_use(program: str, needless: set[str]) -> None:
    loaded = subprocess.run([sys.executable, "-c", f"import sys, speedwell.{program}; print(*sys.modules)"],
                            check=True, capture_output=True, text=True).stdout.split()
    assert not needless & {*loaded}


def test_every_room_of_the_controller_stands_in_the_table() -> None:
    rooms = {f"controller.{path.parent.name}" for path in (ROOT / "controller").glob("*/__init__.py")}
    assert rooms <= MAY_IMPORT.keys()


@pytest.mark.parametrize(("module", "line", "complaint"), [
    ("fs.client", "from speedwell.controller.errors import ControllerError", "fs may not import controller.errors"),
    ("controller.tables.plan", "from speedwell.controller.reads import book",
     "tables may not import controller.reads"),
    ("fs.client", "from coflow import report", "its name is speedwell.coflow"),
    ("controller.reads.book", "import speedwell.controller.coflows.book", "reads may not import controller.coflows"),
    ("controller.rest.http", "from speedwell.controller.topology.state import NetworkState", "rest may not import"),
    ("controller.policy.reads.nearest", "import speedwell.controller.errors", "policy may not import"),
    ("controller.policy.reads.nearest", "import ryu.lib", "may not use ryu"),
    ("controller.policy.reads.nearest", "def now():\n    import time", "policies know no clock"),
    ("controller.policy.reads.nearest", "import random", "policies know no clock"),
    ("controller.policy.reads.nearest", "from random import choice", "policies know no clock"),
    ("controller.topology.state",
     "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import speedwell.controller.tables.plan",
     "may not import"),
    ("sim.kernel", "from speedwell.controller.settings import Settings", "sim may not import controller.settings"),
    ("coflow.report", "import eventlet", "coflow may not use eventlet"),
    ("topo.fabric", "import speedwell.topo.emulation", "a circle of modules: topo.emulation, topo.fabric"),
])
def test_a_wrong_import_is_found_and_told(tmp_path: Path, module: str, line: str, complaint: str) -> None:
    right = {"fs.client": "import speedwell.coflow.report", "coflow.report": "import struct", "controller.errors": "",
             "controller.settings": "import pydantic",
             "controller.policy.reads.nearest": "from random import Random",
             "controller.tables.plan": "import speedwell.controller.topology.state",
             "controller.topology.state": "import ryu",
             "controller.reads.book": "from speedwell.controller.tables import plan", "controller.coflows.book": "",
             "controller.rest.http": "import speedwell.controller.errors",
             "sim.kernel": "import speedwell.controller.policy.reads.nearest",
             "topo.fabric": "", "topo.emulation": "from speedwell.topo.fabric import Fabric"}
    for name, text in right.items():
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert Tree(tmp_path, FOLDERS).wrong() == []
    with tmp_path.joinpath(*module.split(".")).with_suffix(".py").open("a") as file:
        file.write(f"\n{line}\n")
    found = Tree(tmp_path, FOLDERS).wrong()
    assert any(complaint in sentence and module in sentence for sentence in found), found
