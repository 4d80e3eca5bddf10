from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fuse_mount import binding
from fuse_mount.errors import MountError


def library(version: tuple[int, int] | None) -> Any:
    fields = {} if version is None else {"fuse_version_major": version[0], "fuse_version_minor": version[1]}
    return SimpleNamespace(**fields)


def options(version: tuple[int, int] | None, source: str = "speedwell@h:1") -> dict[str, Any]:
    return binding.mount_options(library(version), source=source, allow_other=True, kernel_cache_seconds=0.01)


def test_a_library_that_does_not_say_its_version_is_libfuse_2() -> None:
    assert binding.libfuse_version(library(None)) == (2, 9)


def test_options_are_those_that_the_libfuse_knows() -> None:
    assert "big_writes" in options(None)
    assert "max_threads" not in options(None)
    assert "big_writes" not in options((3, 14))
    assert options((3, 14))["max_threads"] == binding.MAX_THREADS
    assert "max_threads" not in options((3, 10))


def test_several_addresses_are_one_option() -> None:
    assert options((3, 14), source="speedwell@h:1,i:2")["fsname"] == "speedwell@h:1|i:2"


def test_only_libfuse_3_can_drop_attributes() -> None:
    assert binding.attribute_dropper(library(None)) is None


def import_only(name: str, module: ModuleType | Any) -> Any:
    def importer(wanted: str) -> Any:
        if wanted != name:
            raise ImportError(f"no {wanted}")
        return module

    return importer


def test_fusepy_is_taken_where_mfusepy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    fusepy = SimpleNamespace(FUSE=object, fuse_get_context=lambda: (0, 0, 0))
    monkeypatch.setattr(binding.importlib, "import_module", import_only("fuse", fusepy))
    assert binding.load_library() is fusepy


def test_another_module_named_fuse_is_not_mistaken_for_fusepy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding.importlib, "import_module", import_only("fuse", SimpleNamespace(Fuse=object)))
    with pytest.raises(MountError, match="install"):
        binding.load_library()


class Recorded:
    """Operations that answer with what they got."""

    def mkdir(self, *arguments: Any) -> Any:
        return arguments

    def readdir(self, path: bytes, handle: int) -> Any:
        return iter([(".", {}, 0), ("caf\udce9", {"st_ino": 3}, 0)])


def test_fusepy_hands_on_names_byte_for_byte() -> None:
    """It decodes with the encoding that `serve` asks for, and encodes the answers with it."""
    operations = binding._Callable(Recorded())
    assert operations("mkdir", b"/caf\xe9".decode("latin-1"), 0o755) == (b"/caf\xe9", 0o755)
    names = [entry[0].encode("latin-1") for entry in operations("readdir", "/", 1)]
    assert names == [b".", b"caf\xe9"]
