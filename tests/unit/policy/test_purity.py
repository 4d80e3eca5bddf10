"""Policies decide; they do not look at the world. What they may import is how that is kept."""

import ast
from collections.abc import Iterator
from pathlib import Path

import speedwell.controller.policy

ALLOWED = {
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools",
    "hashlib", "heapq", "importlib", "inspect", "ipaddress", "itertools", "math", "networkx", "numba", "numpy",
    "operator", "random", "speedwell", "statistics", "typing",
}  # fmt: skip


def imports_of(source: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_policies_import_neither_the_outside_world_nor_the_rest_of_the_controller() -> None:
    (folder,) = map(Path, speedwell.controller.policy.__path__)
    sources = sorted(folder.rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        for module, name in imports_of(source):
            assert module.split(".")[0] in ALLOWED, f"{source.name} imports {module}"
            assert not module.startswith("speedwell") or module.startswith("speedwell.controller.policy"), source.name
            assert module != "random" or name == "Random", f"{source.name} uses the shared random generator"
