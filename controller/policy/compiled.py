"""Functions over arrays that numba compiles, and the types of these arrays.

Such a function must not call into another module: numba's cache looks at the function's own file alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Records = NDArray[Any]
Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    return cast(Function, njit(cache=True)(function))


def compiled_for_threads(function: Function) -> Function:
    """Other threads run meanwhile: for what takes long."""
    return cast(Function, njit(cache=True, nogil=True)(function))
