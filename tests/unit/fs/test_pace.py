"""Work held back to a rate in bytes a second."""

import threading
import time

from speedwell.fs.dataserver.upkeep.pace import SLICE_BYTES, Pace


def test_several_threads_share_one_rate() -> None:
    pace = Pace(4 * SLICE_BYTES)
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: [pace.wait(SLICE_BYTES) for _ in range(2)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.9   # four slices at four slices a second


def test_an_idle_time_is_no_credit() -> None:
    pace = Pace(SLICE_BYTES)
    time.sleep(0.3)
    began = time.monotonic()
    pace.wait(SLICE_BYTES // 2)
    assert time.monotonic() - began >= 0.45
