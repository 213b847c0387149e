"""What a wrapped block needs of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from dysharp.functional.torch.experts import ModuleExperts

Array = NDArray[Any]


class MoeMachine(Protocol):
    """What computes and moves the expert part of a layer.

    `x`, `y`, `dy`, `dx`: `[tokens, hidden]`, float32 or `ml_dtypes.bfloat16`; `expert`: `[tokens, topk]` int64, -1 =
    dropped; `weight`, `dweight`: `[tokens, topk]` float32. The arrays handed in are read only.
    """

    def forward(self, x: Array, expert: Array, weight: Array, experts: ModuleExperts) -> tuple[Array, Any]:
        """`y` (the dtype of `x`) and whatever `backward` needs."""

    def backward(self, saved: Any, dy: Array, experts: ModuleExperts) -> tuple[Array, Array]:
        """`dx` and `dweight`; weight gradients are added up in `experts`."""
