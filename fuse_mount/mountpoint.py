"""The directory a filesystem is mounted on: is it fit, is it taken, what does a dead mount need."""

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from speedwell.fs.mount_table import FILESYSTEM_TYPE, mounted_here
from speedwell.fuse_mount.errors import MountError

FUSE_DEVICE = Path("/dev/fuse")
FUSERMOUNT = "fusermount3"
USER_ALLOW_OTHER = "user_allow_other"
# Two requests of the largest size are under way at a time: with more of them, threads overtake each other so far
# that a stream cannot serve them in order any more.
READ_AHEAD_KIB = 2048
UNMOUNT_TIMEOUT_SECONDS = 10.0


def require_fuse() -> None:
    """Raises MountError where this machine or this user cannot mount with FUSE."""
    if not FUSE_DEVICE.exists():
        raise MountError(f"{FUSE_DEVICE} is missing: the kernel has no FUSE, or the container was not given it")
    if os.geteuid() != 0 and not shutil.which(FUSERMOUNT):
        raise MountError(f"{FUSERMOUNT} is missing: install the Debian package fuse3, or mount as root")


def require_permission(mountpoint: Path, *, allow_other: bool, settings: Path = Path("/etc/fuse.conf")) -> None:
    """Raises MountError for what fusermount3 refuses to a user without root; `settings` is its configuration."""
    if os.geteuid() == 0:
        return
    if not os.access(mountpoint, os.W_OK):
        raise MountError(f"{mountpoint} belongs to somebody else: a user other than root mounts where they may write")
    lines = settings.read_text().splitlines() if settings.exists() else []
    if allow_other and USER_ALLOW_OTHER not in map(str.strip, lines):
        raise MountError(f"allow_other is for root, unless {settings} has the line {USER_ALLOW_OTHER}")


def prepare(mountpoint: Path) -> Path:
    """Check `mountpoint`, clear a dead mount from it and return its real path.

    Raises MountError if it is missing, not an empty directory, or a Speedwell mount already serves it.
    """
    parent = mountpoint.absolute().parent
    try:
        real = parent.resolve(strict=True) / mountpoint.name if mountpoint.name else mountpoint.resolve()
    except OSError as error:
        raise MountError(f"{mountpoint}: {error.strerror}") from None
    if not _answers(real):
        _clear_dead_mount(real)
    if real.is_symlink():
        real = real.resolve()
    if not real.exists():
        raise MountError(f"{mountpoint} does not exist: make the directory first")
    if not real.is_dir():
        raise MountError(f"{mountpoint} is not a directory")
    mount = mounted_here(real)
    if mount is not None and mount.filesystem_type == FILESYSTEM_TYPE:
        raise MountError(f"{mountpoint} is already mounted (from {mount.source}); unmount it first: "
                         f"fusermount3 -u {mountpoint}")
    try:
        if any(real.iterdir()):
            raise MountError(f"{mountpoint} is not empty: the mount would hide its files")
    except PermissionError:
        raise MountError(f"{mountpoint} cannot be read: permission denied") from None
    return real


def _answers(mountpoint: Path) -> bool:
    """False if a FUSE mount is there whose process is gone."""
    try:
        if not stat.S_ISLNK(mountpoint.lstat().st_mode):    # which the kernel may answer for a process that is gone
            os.statvfs(mountpoint)
    except OSError as error:
        return error.errno not in (errno.ENOTCONN, errno.ECONNABORTED)
    return True


def _clear_dead_mount(mountpoint: Path) -> None:
    if os.geteuid() == 0:
        command = ["umount", "--lazy", str(mountpoint)]
    else:
        command = [FUSERMOUNT, "-u", "-z", str(mountpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=UNMOUNT_TIMEOUT_SECONDS, check=False)
    if done.returncode != 0:
        raise MountError(f"{mountpoint} holds a mount whose process is gone, and it cannot be removed: "
                         f"{done.stderr.strip()}")


def raise_read_ahead(mountpoint: Path) -> bool:
    """Let the kernel read ahead further than its default of 128 KiB; False where that is not allowed."""
    device = mountpoint.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        setting.write_text(f"{READ_AHEAD_KIB}\n")
    except OSError:
        return False
    return True


def require_writable(directory: Path) -> None:
    """Raises MountError if temporary files cannot be made there."""
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise MountError(f"--staging-directory: no files can be made in {directory}: {error.strerror}") from None
