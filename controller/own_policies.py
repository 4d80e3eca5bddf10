"""Policies that do not come with Speedwell: of installed packages, and in files of users.

A package names its policies as entry points of the group `speedwell.policies`; each leads to a `Policy` or to a
module that has some. A file is a Python module that has at least one `Policy` at its top level. The environment
variable SPEEDWELL_POLICY_PATH names the files, so that processes that are started from here offer the same policies.

Whoever takes `POLICIES` from here has all of them; who takes it from `controller.policy.registry`, what this process
has.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from speedwell.controller.policy.errors import InvalidPolicy
from speedwell.controller.policy.registry import POLICIES, Policy, PolicyRegistry

__all__ = ["POLICIES", "add_file", "failed_in", "found"]

GROUP = "speedwell.policies"
VARIABLE = "SPEEDWELL_POLICY_PATH"


def found() -> Iterator[Policy]:
    """All policies of installed packages and of the files in SPEEDWELL_POLICY_PATH. Raises InvalidPolicy."""
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            raise InvalidPolicy(f"entry point {entry.name} = {entry.value}: {_reason(error)}") from error
        yield from _policies_of(loaded, f"entry point {entry.name} = {entry.value}")
    for path in _known_files():
        yield from _of_file(path)


def add_file(policies: PolicyRegistry, path: Path) -> None:
    """Offer the policies of a file from now on, here and in processes started from here. Raises InvalidPolicy."""
    policies.complete()
    path = path.absolute()
    if path in _known_files():
        return
    for policy in _of_file(path):
        try:
            policies.register(policy)
        except InvalidPolicy as error:
            raise InvalidPolicy(f"{path}: {error}") from None
    os.environ[VARIABLE] = os.pathsep.join(map(str, (*_known_files(), path)))


def failed_in(error: Exception) -> str:
    """What went wrong in a user's file, with its line; empty for an error that comes from none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename) in _known_files():
            return f"{frame.filename}, line {frame.lineno}: {_reason(error)}"
    return ""


def _known_files() -> list[Path]:
    return [Path(name).absolute() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def _of_file(path: Path) -> list[Policy]:
    # a name of its own: the file may be called like a module that is imported elsewhere
    name = f"speedwell_own_policies_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidPolicy(f"{path}: there is no Python file (.py) of that name")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidPolicy(f"{path}: {_reason(error)}") from error
    return _policies_of(module, str(path))


def _policies_of(loaded: Any, where: str) -> list[Policy]:
    policies = [loaded] if isinstance(loaded, Policy) else [
        value for value in vars(loaded).values() if isinstance(value, Policy)] if hasattr(loaded, "__dict__") else []
    if not policies:
        raise InvalidPolicy(f"{where}: there is no speedwell.controller.policy.registry.Policy in it")
    return policies


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


POLICIES.more = found
