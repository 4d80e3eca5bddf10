"""Planning and running copies, without an installation."""

import os
import subprocess
import sys
import threading

import pytest

from speedwell.cluster import transfer
from speedwell.cluster.progress import Meter
from speedwell.fs.option_types import Duration, Rate, Size


def test_a_tree_is_planned_with_parents_first_links_kept_and_special_files_passed_over(tmp_path):
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_bytes(b"12345")
    (tmp_path / "tree" / "script").write_bytes(b"#!")
    (tmp_path / "tree" / "script").chmod(0o750)
    (tmp_path / "tree" / "link").symlink_to("script")
    (tmp_path / "tree" / "loop").symlink_to(".")
    (tmp_path / "tree" / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "tree" / "pipe")
    skipped: list[str] = []
    tree = transfer.plan_uploads(tmp_path / "tree", b"/t", skipped.append)
    assert [path for path, _ in tree.directories] == [b"/t", b"/t/sub"]
    assert {job.destination: (job.mode, job.size_bytes) for job in tree.files} == {
        b"/t/script": (0o750, 2), b"/t/sub/file": (0o644, 5)}
    assert tree.links == [(b"/t/broken", b"nowhere"), (b"/t/link", b"script"), (b"/t/loop", b".")]
    assert [line.split(":")[0].rpartition("/")[2] for line in skipped] == ["pipe"]


def test_names_that_are_not_utf8_are_planned_as_their_bytes(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"")
    tree = transfer.plan_uploads(tmp_path, b"/", lambda line: None)
    assert [job.destination for job in tree.files] == [b"/caf\xe9"]


def test_the_first_failure_stops_the_others_and_is_the_one_raised():
    started = threading.Event()
    stopped: list[bool] = []

    def endless(report):
        started.set()
        try:
            while True:
                report(1)
        except transfer.Stopped:
            stopped.append(True)
            raise

    def failing(report):
        started.wait(15)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        transfer.run_all([endless, failing], lambda count: None)
    assert stopped == [True]


def test_all_jobs_run_and_report(tmp_path):
    moved = []
    transfer.run_all([lambda report, size=size: report(size) for size in range(20)], moved.append)
    assert sorted(moved) == list(range(20))


class FailingClient:
    """Delivers some bytes, then breaks; in place of an installation that dies half-way."""

    def fetch(self, path, descriptor, progress):
        os.write(descriptor, b"half")
        raise OSError("network is gone")


def test_a_failed_download_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    job = transfer.Download(b"/file", tmp_path / "file", 0o644, 8)
    with pytest.raises(OSError, match="network is gone"):
        transfer.download(FailingClient(), job, lambda count: None)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(("text", "size_bytes"), [
    ("1048576", 1 << 20), ("64K", 64 << 10), ("64KiB", 64 << 10), ("2 MB", 2 << 20), ("1g", 1 << 30),
    ("1T", 1 << 40), ("5B", 5), ("6.5 MiB", 13 << 19), ("0", 0)])
def test_sizes_are_read_with_units(text, size_bytes):
    assert Size()(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1.3B", "1.M", "1Q", "1MiB/s", "nan", "1KK", "0x10", "M1"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(Exception, match="is not a number of bytes"):
        Size()(text)


@pytest.mark.parametrize("text", ["8MiB/s", "8 mib", "8388608/S", "8M"])
def test_rates_are_sizes_a_second(text):
    assert Rate()(text) == 8 << 20


@pytest.mark.parametrize("text", ["0", "9999999T"])
def test_sizes_and_rates_have_bounds(text):
    with pytest.raises(Exception, match=r"must be from 1 to 4\.0 EiB"):
        Rate(1)(text)


def test_a_time_has_a_bound():
    assert Duration(86400)("1d") == 86400
    with pytest.raises(Exception, match="'25h' must be at most 1 day"):
        Duration(86400)("25h")


def test_a_meter_without_a_terminal_shows_nothing_and_starts_no_thread(capfd):
    before = threading.active_count()
    with Meter("file", 100) as meter:
        meter.advance(50)
        assert threading.active_count() == before
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_work_that_takes_long_shows_a_bar_and_clears_it_away():
    code = ("import time\nfrom speedwell.cluster.progress import Meter\n"
            "with Meter('big file', 1 << 30) as meter:\n"
            "    meter.advance(256 << 20)\n    time.sleep(1.6)\n    meter.advance(256 << 20)\n    time.sleep(0.3)\n")
    main, terminal = os.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stderr=terminal, env={**os.environ, "TERM": "xterm"}):
        os.close(terminal)
        shown = read_to_end(main)
    assert b"big file" in shown
    assert b"512.0/1,024.0 MiB" in shown or b"0.5/1.0 GiB" in shown
    assert shown.endswith(b"\x1b[2K")


def read_to_end(descriptor: int) -> bytes:
    shown = b""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # the other side of the terminal was closed
            piece = b""
        if not piece:
            os.close(descriptor)
            return shown
        shown += piece
