"""What mount(8)'s options become."""

import pytest

from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.mount_helper import Wanted, read_options


def test_options_of_speedwell_mount_have_underscores_and_those_of_the_kernel_go_there() -> None:
    assert read_options("rw,noexec,ro,allow_other,parts=4,cache_seconds=0,strong,log=/a b,no_allow_other") == Wanted(
        kernel=["rw", "noexec", "ro"],
        arguments=["--allow-other", "--parts=4", "--cache-seconds=0", "--strong", "--log=/a b", "--no-allow-other"])


def test_what_is_for_mount_or_systemd_or_from_the_mount_table_has_no_effect() -> None:
    assert read_options("defaults,noauto,nofail,user=me,_netdev,x-systemd.automount,X-mount.mkdir,comment=no,noatime,"
                        "relatime,default_permissions,user_id=0,group_id=0,max_read=131072,") == Wanted()
    assert read_options("") == Wanted()
    assert read_options("remount,ro") == Wanted(remount=True, kernel=["ro"])


@pytest.mark.parametrize(("text", "message"), [
    ("ro,quick", "unknown option 'quick'"), ("sync", "unknown option 'sync'"), ("nameserver=h:1", "unknown"),
    ("foreground", "unknown"), ("source=x", "unknown"), ("ro=1", "unknown option 'ro=1'"),
    ("parts", "parts takes a value"), ("strong=1", "strong takes no value")])
def test_anything_else_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        read_options(text)


def test_sloppy_leaves_out_what_nobody_knows() -> None:
    assert read_options("quick,parts=2,other=3", sloppy=True) == Wanted(arguments=["--parts=2"])
