"""Tensors to NumPy arrays and back, bit for bit; bfloat16 travels as `ml_dtypes.bfloat16`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from dysharp.base import Array, ConfigError

if TYPE_CHECKING:
    import torch


def check_tensor(tensor: torch.Tensor, what: str) -> None:
    """Raises ConfigError unless `tensor` is a float32 or bfloat16 tensor in the memory of the CPU."""
    import torch

    if tensor.device.type != "cpu":
        raise ConfigError(f"{what}: found device {tensor.device}, expected cpu, because the machine computes in NumPy")
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(f"{what}: found dtype {dtype_name(tensor.dtype)}, expected float32 or bfloat16")


def to_array(tensor: torch.Tensor) -> Array:
    """`tensor` (float32 or bfloat16) as a read-only array of its dtype. A contiguous tensor shares its memory."""
    import torch

    tensor = tensor.detach().contiguous()
    # NumPy has no bfloat16, so the bits pass as int16.
    is_bf16 = tensor.dtype == torch.bfloat16
    array: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if is_bf16 else tensor.numpy()
    # The memory may belong to the user.
    array.flags.writeable = False
    return array


def to_tensor(array: Array, like: torch.Tensor, what: str) -> torch.Tensor:
    """A copy of `array` as a tensor of the shape and dtype of `like`.

    An array of float32 is rounded to nearest even. Raises ConfigError for another shape or dtype.
    """
    import torch

    if array.shape != tuple(like.shape) or array.dtype not in (np.float32, ml_dtypes.bfloat16):
        raise ConfigError(f"{what}: found {array.dtype} {list(array.shape)}, expected {dtype_name(like.dtype)} {list(like.shape)}")
    # Always a copy: the machine may keep its array, and autograd adds into the tensor.
    copy = np.array(array, order="C")
    if copy.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16).to(like.dtype)
    return torch.from_numpy(copy).to(like.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in error messages."""
    return str(dtype).removeprefix("torch.")
