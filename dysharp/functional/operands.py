"""Operands of the runtime API as plain values: NumPy scalars and arrays are read, anything else is an error by name."""

from collections.abc import Iterable
from operator import index
from typing import Any, Final

import numpy as np

from dysharp.errors import IsaError

LONGEST: Final = 80
FEW: Final = 8
MAX_TARGETS: Final = (1 << 15) - 1  # the target count of a packet


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer: of Python, a NumPy scalar, or an array without dimensions."""
    try:
        index(value)
    except TypeError:
        return False
    return True


def show(value: Any) -> str:
    """`value` for an error message: the text of a number, the shape of an array; shortened."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of {value.dtype} of shape {value.shape}" if value.size > FEW else str(value.tolist())
    text = str(index(value)) if is_whole(value) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def few(bound: Iterable[int]) -> str:
    """The GPUs that have bound an object, the first ones by number."""
    gpus = sorted(bound)
    if not gpus:
        return "none has"
    return "bound: " + ", ".join(map(str, gpus[:FEW])) + (f" and {len(gpus) - FEW} more" if len(gpus) > FEW else "")


def whole(where: str, value: Any, limit: int) -> int:
    """`value` as an int from 0 to `limit` - 1. Raises IsaError that begins with `where`."""
    if not is_whole(value):
        raise IsaError(f"{where}: found {show(value)}, expected an integer")
    number = index(value)
    if not 0 <= number < limit:
        raise IsaError(f"{where}: found {number}, expected 0 .. {limit - 1}")
    return number


def target_list(instruction: str, gpu: int, targets: Any) -> tuple[int, ...]:
    """Experts as ints, from a sequence, a range or a one-dimensional array of integers. Raises IsaError."""
    where = f"{instruction} targets on GPU {gpu}"
    flat = targets.ndim == 1 if isinstance(targets, np.ndarray) else hasattr(targets, "__iter__") and not isinstance(targets, str)
    if not flat:
        raise IsaError(f"{where}: found {show(targets)}, expected a list or a one-dimensional array of experts")
    if hasattr(targets, "__len__") and len(targets) > MAX_TARGETS:
        raise IsaError(f"{instruction} target count on GPU {gpu}: found {len(targets)}, expected at most {MAX_TARGETS}")
    listed = tuple(targets)
    for target in listed:
        if not is_whole(target):
            raise IsaError(f"{where}: found {show(target)}, expected integers")
    return tuple(map(index, listed))
