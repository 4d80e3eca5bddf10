import re
from types import SimpleNamespace
from typing import Any

import pytest

from speedwell.fuse_mount import binding
from speedwell.fuse_mount.errors import MountError


def import_only(name: str, module: Any) -> Any:
    def importer(wanted: str) -> Any:
        if wanted != name:
            raise ImportError(f"no {wanted}")
        return module

    return importer


def test_several_addresses_are_one_option() -> None:
    options = re.split(r"(?<!\\),", binding.mount_options(source="speedwell@h:1,i:2", allow_other=True,
                                                          kernel_options=("ro", "nosuid")))
    assert options == [r"fsname=speedwell@h:1\,i:2", "subtype=speedwell", "default_permissions", "allow_other", "ro",
                       "nosuid"]
    assert "allow_other" not in binding.mount_options(source="speedwell@h:1", allow_other=False)


@pytest.mark.parametrize("library", [None, SimpleNamespace(fuse_version_major=2, fuse_version_minor=9)])
def test_without_libfuse_3_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(binding.importlib, "import_module", import_only("mfusepy" if library else "another", library))
    with pytest.raises(MountError, match="install the Debian package fuse3"):
        binding.load_library()


def test_the_kernel_is_asked_only_for_what_it_offers() -> None:
    locks = binding.CAP_POSIX_LOCKS | binding.CAP_FLOCK_LOCKS
    connection = SimpleNamespace(capable=locks, want=binding.CAP_AUTO_INVAL_DATA, proto_major=7, proto_minor=17)
    binding.tune(connection)
    assert connection.want == 0
    connection.capable = locks | binding.CAP_HANDLE_KILLPRIV_V2
    binding.tune(connection)
    assert connection.want == binding.CAP_HANDLE_KILLPRIV_V2
    binding.tune(connection, acls=True)
    assert connection.want == binding.CAP_HANDLE_KILLPRIV_V2
    connection.capable |= binding.CAP_POSIX_ACL | binding.CAP_DONT_MASK
    binding.tune(connection, acls=True)
    assert connection.want == connection.capable & ~locks
