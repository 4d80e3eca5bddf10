"""Nothing is left to compile when the first read comes: a controller that compiles answers nobody meanwhile."""

import subprocess
import sys

PROGRAM = """
import pytest
from random import Random
from speedwell.controller.policy.reads import progressive_filling, queue_kernels, share_kernels
from speedwell.controller.policy.reads.selection import compile_selection

def compiled():
    return {(module.__name__, name): tuple(kernel.nopython_signatures)
            for module in (progressive_filling, queue_kernels, share_kernels)
            for name, kernel in vars(module).items() if hasattr(kernel, "nopython_signatures")}

compile_selection()
before = compiled()
assert any(before.values())
from tests.unit.policy import test_mayflower, test_mayflower_model, test_mayflower_srpt
code = pytest.main(["-q", "-p", "no:cacheprovider", test_mayflower.__file__, test_mayflower_model.__file__,
                    test_mayflower_srpt.__file__])
assert code == 0, code
late = {name for name, signatures in compiled().items() if signatures != before[name]}
assert not late, f"compiled at first use: {late}"
"""


def test_reads_compile_nothing_that_was_not_compiled_at_the_start() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
