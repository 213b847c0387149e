"""The contract between a wrapped block and a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dysharp.base import Array

if TYPE_CHECKING:
    from dysharp.functional.torch.experts import ModuleExperts


class MoeMachine(Protocol):
    """Computes the experts of a layer and moves their rows.

    `x`, `y`, `dy`, `dx`: `[tokens, hidden]`, float32 or `ml_dtypes.bfloat16`; `expert`: `[tokens, topk]` int64, -1 =
    dropped; `weight`, `dweight`: `[tokens, topk]` float32. The argument arrays are read only.
    """

    def forward(self, x: Array, expert: Array, weight: Array, experts: ModuleExperts) -> tuple[Array, Any]:
        """`y` in the dtype of `x`, and the data for `backward`."""

    def backward(self, saved: Any, dy: Array, experts: ModuleExperts) -> tuple[Array, Array]:
        """(`dx`, `dweight`). `experts` adds up its weight gradients."""
