"""How the simulator's core is compiled, and where the result is kept."""

import os
from hashlib import sha256
from pathlib import Path

from numba import config, njit

_HERE = Path(__file__).parent
_DIGEST = sha256(b"".join((_HERE / f"{name}.py").read_bytes()
                          for name in ("compiled", "state", "heaps", "members", "levels", "kernel"))).hexdigest()

# Numba looks at the file of a function only, not at those of the functions that it calls.
config.CACHE_DIR = str(Path(os.environ.get("NUMBA_CACHE_DIR") or _HERE / "__pycache__") / f"compiled-{_DIGEST[:16]}")

compiled = njit(cache=True, _nrt=False)
"""Compile a function that allocates nothing: without counted references, whose counting took most of the time."""
