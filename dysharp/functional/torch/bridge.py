"""The autograd side of a wrapped block. This module imports torch, so only `wrap` imports this module."""

import inspect
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from dysharp.base import Array, ByName, ConfigError
from dysharp.functional.torch.arrays import check_tensor, dtype_name, to_array, to_tensor
from dysharp.functional.torch.experts import ModuleExperts, layout_of
from dysharp.functional.torch.machine import MoeMachine

ARGUMENTS = 3  # hidden states, expert ids, gate weights


class MachineExperts(torch.nn.Module):
    """Replaces an experts module. Parameters and attributes stay, and `forward` runs on a machine."""

    def __init__(self, experts: torch.nn.Module, machine: MoeMachine, where: str) -> None:
        super().__init__()
        self._signature = inspect.signature(experts.forward)
        self._where = where
        if len(self._signature.parameters) != ARGUMENTS:
            raise ConfigError(f"{where}: found experts called with {self._signature}, expected (hidden states, expert ids, gate weights)")
        self._names = layout_of(experts).names
        self._machine = machine
        for name in self._names:
            self.register_parameter(name, getattr(experts, name))
        # A tuple hides the user's module from torch's list of children. The assignment is last, because `__getattr__`
        # then reads names of that module.
        self._own = (experts,)
        self.train(experts.training)

    def __getattr__(self, name: str) -> Any:
        # Blocks may read attributes of their experts, such as `num_experts`.
        try:
            return super().__getattr__(name)
        except AttributeError:
            own = self.__dict__.get("_own")
            if own is None:
                raise
            return getattr(own[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The weighted sum of the experts' outputs, `[tokens, hidden]` in the dtype of the hidden states.

        The arguments are the replaced module's: hidden states `[tokens, hidden]`, expert ids `[tokens, topk]` integers
        (-1 or the number of experts = dropped), gate weights `[tokens, topk]`. Raises ConfigError for other arguments.
        """
        hidden, index, weight = self._arguments(args, kwargs)
        experts = ModuleExperts(self)
        parameters = [getattr(self, name) for name in self._names]
        ids = _expert_ids(index, experts.n_experts, self._where)
        out: torch.Tensor = _OnMachine.apply(self._machine, experts, ids, hidden, weight, *parameters)  # type: ignore[no-untyped-call]
        return out

    def _arguments(self, args: tuple[Any, ...], kwargs: ByName) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        try:
            bound = tuple(self._signature.bind(*args, **kwargs).arguments.values())
        except TypeError as error:
            raise ConfigError(f"{self._where}: found experts called with other arguments ({error}), expected {self._signature}") from error
        if len(bound) != ARGUMENTS or not all(isinstance(v, torch.Tensor) for v in bound):
            raise ConfigError(f"{self._where}: found {len(bound)} arguments, expected three tensors: hidden states, expert ids, gate weights")
        hidden, index, weight = bound
        # `getattr`, because `torch.func.functional_call` replaces parameters by tensors.
        for name in self._names:
            check_tensor(getattr(self, name), f"{self._where}.{name}")
        check_tensor(hidden, f"{self._where}: hidden states")
        check_tensor(weight, f"{self._where}: gate weights")
        wanted = getattr(self, self._names[0]).dtype
        if hidden.dtype != wanted:
            raise ConfigError(f"{self._where}: found hidden states {dtype_name(hidden.dtype)}, expected {dtype_name(wanted)} as the experts' weights")
        if hidden.ndim != 2 or index.ndim != 2 or index.shape != weight.shape or len(index) != len(hidden):
            shapes = ", ".join(str(list(t.shape)) for t in bound)
            raise ConfigError(f"{self._where}: found shapes {shapes}, expected [tokens, hidden], [tokens, topk], [tokens, topk]")
        return hidden, index, weight


def _expert_ids(index: torch.Tensor, n_experts: int, where: str) -> Array:
    """`[tokens, topk]` int64, -1 = dropped. Hugging Face marks a dropped place by the id after the last expert."""
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise ConfigError(f"{where}: found expert ids {dtype_name(index.dtype)}, expected integers")
    ids: Array = index.detach().to("cpu", torch.int64).numpy().copy()
    ids[ids == n_experts] = -1
    wrong = np.argwhere((ids < -1) | (ids > n_experts))
    if len(wrong):
        token, place = wrong[0]
        raise ConfigError(f"{where}: found expert id {ids[token, place]} at token {token}, place {place}, expected -1 to {n_experts - 1}")
    return ids


class _OnMachine(torch.autograd.Function):
    """A function from hidden states, gate weights and expert parameters to weighted sums.

    Each call has its own state.
    """

    @staticmethod
    def forward(
        ctx: Any, machine: MoeMachine, experts: ModuleExperts, ids: Array, hidden: torch.Tensor, weight: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        y, saved = machine.forward(to_array(hidden), ids, to_array(weight.float()), experts)
        # Arrays share memory with these tensors. Autograd refuses a backward pass after a saved tensor has changed.
        ctx.save_for_backward(hidden, weight, *parameters)
        ctx.machine, ctx.experts, ctx.saved = machine, experts, saved
        return to_tensor(y, hidden, "the machine's output")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, *parameters = ctx.saved_tensors
        ctx.experts.clear_grads()
        dx, dweight = ctx.machine.backward(ctx.saved, to_array(grads[0]), ctx.experts)
        sums = ctx.experts.take_grads()
        of_parameters = (
            to_tensor(sums[name], p, f"gradient of {name}") if name in sums else None
            for name, p in zip(ctx.experts.layout.names, parameters, strict=True)
        )
        dweight_tensor = to_tensor(dweight, weight, "the machine's gate gradient")
        return None, None, None, to_tensor(dx, hidden, "the machine's input gradient"), dweight_tensor, *of_parameters
