"""Experts of a Hugging Face module, computed in float32 from the module's own parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dysharp.base import Array, ConfigError, Texts, frozen
from dysharp.functional.experts import Experts
from dysharp.functional.torch.arrays import check_tensor
from dysharp.functional.torch.extra import require_torch

if TYPE_CHECKING:
    import torch


@frozen
class _Layout:
    """The storage of weights in an experts module. `names`: names of the parameters, in the order W1, W2, b1, b2.

    `gated`: W1 holds gate and up. `transposed`: matrices are `[in, out]` (gpt-oss), else `[out, in]` as in `nn.Linear`.
    """

    names: Texts
    gated: bool
    transposed: bool

    @property
    def has_bias(self) -> bool:
        return len(self.names) == 4


def layout_of(module: torch.nn.Module) -> _Layout:
    """The layout of an experts module, from its parameters' shapes and the attributes of `use_experts_implementation`.

    Raises ConfigError with module and attributes in three cases: the parameters are not two weight tensors `[experts, ., .]` with at most one bias
    each; the shapes fit neither or both orientations; the machine has no step for a part (parameters in the activation, a norm after each expert).
    """
    kind = type(module).__name__
    gated = getattr(module, "gate_up_proj", None) is not None
    first = "gate_up_proj" if gated else "up_proj"
    names = tuple(n for n in (first, "down_proj", f"{first}_bias", "down_proj_bias") if getattr(module, n, None) is not None)
    found = dict(module.named_parameters())
    if set(found) != set(names) or len(names) not in (2, 4):
        expected = "gate_up_proj (or up_proj) and down_proj, each with or each without _bias"
        raise ConfigError(f"{kind}: found parameters {', '.join(sorted(found)) or 'none'}, expected {expected}")
    if getattr(module, "has_post_expert_norm", False):
        raise ConfigError(f"{kind}: found has_post_expert_norm, expected experts that end with down_proj")
    _check_activation(module, gated)
    layout = _Layout(names, gated, _transposed(module, first, gated))
    if layout.has_bias:
        _check_biases(module, layout)
    return layout


def _check_activation(module: torch.nn.Module, gated: bool) -> None:
    # Only `_apply_gate` tells whether the columns of gate and up alternate.
    name = "_apply_gate" if gated else "act_fn"
    if not callable(getattr(module, name, None)):
        raise ConfigError(f"{type(module).__name__}: found no {name}, expected the method of use_experts_implementation")


def _transposed(module: torch.nn.Module, first: str, gated: bool) -> bool:
    kind = type(module).__name__
    a, b = tuple(getattr(module, first).shape), tuple(module.down_proj.shape)  # type: ignore[arg-type]
    shapes = f"{first} {list(a)}, down_proj {list(b)}"
    if len(a) != 3 or len(b) != 3 or a[0] != b[0]:
        raise ConfigError(f"{kind}: found {shapes}, expected both [experts, ., .]")
    width = 2 if gated else 1
    straight = a[2] == b[1] and a[1] == width * b[2]
    transposed = a[1] == b[2] and a[2] == width * b[1]
    stated = getattr(module, "is_transposed", None)
    if not (straight or transposed) or (stated is not None and not (transposed if stated else straight)):
        raise ConfigError(f"{kind}: found {shapes} with is_transposed {stated}, expected [experts, out, in], or [experts, in, out] when transposed")
    if straight and transposed and stated is None:
        raise ConfigError(f"{kind}: found {shapes} without is_transposed, expected the attribute: the shapes fit both orientations")
    return transposed if stated is None else bool(stated)


def _check_biases(module: torch.nn.Module, layout: _Layout) -> None:
    out = 1 if not layout.transposed else 2
    for weight, bias in zip(layout.names[:2], layout.names[2:], strict=True):
        shape = getattr(module, weight).shape
        found, expected = list(getattr(module, bias).shape), [shape[0], shape[out]]
        if found != expected:
            raise ConfigError(f"{type(module).__name__}: found {bias} {found}, expected {expected}")


class ModuleExperts(Experts):
    """`Experts` of the functional machine on the parameters and the activation of a Hugging Face experts module.

    | part | comes from |
    |---|---|
    | weights | the module's present parameters: views of float32, float32 copies of bfloat16 |
    | activation | the module's `_apply_gate`, without a gate `act_fn`, in float32 |
    | derivative of the activation | torch autograd |

    All arrays are `[n, columns]` of one expert; results are float32. This object adds up weight gradients in the
    module's layout until `take_grads`. Frozen parameters (`requires_grad` false) get no gradient.

    Raises ConfigError for a module of another shape (see `layout_of`), another dtype, or on another device than the CPU.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        require_torch()
        self._module = module
        self.layout = layout_of(module)
        self._stored = {n: _float32(getattr(module, n), f"{type(module).__name__}.{n}") for n in self.layout.names}
        self._learns = {n: bool(getattr(module, n).requires_grad) for n in self.layout.names}
        self._grads: dict[str, Array] = {}
        first, second = (self._in_out(self._stored[name]) for name in self.layout.names[:2])
        self.n_experts, self.hidden, self.inner = first.shape
        self.mid: int = second.shape[1]

    def act(self, e: int, h: Array) -> Array:
        """`[n, inner]` to `[n, mid]`: the module's own activation, in float32."""
        import torch

        with torch.no_grad():
            return _numpy(self._activate(_tensor(h)))

    def gate_grad(self, e: int, a: Array, dy: Array, g: Array) -> Array:
        """`[n]` gradient of each row's gate weight: `<g, a>` with `g = dy W2^T`, plus `<dy, b2>`."""
        out: Array = (_rows(g) * _rows(a)).sum(axis=1)
        if self.layout.has_bias:
            out += (_rows(dy) * self._stored[self.layout.names[3]][e]).sum(axis=1)
        return out

    def act_grad(self, e: int, h: Array, da: Array) -> Array:
        """`[n, mid]` to `[n, inner]`: `da` through the activation at `h`."""
        import torch

        # Grad mode is off inside the backward of an autograd Function.
        with torch.enable_grad():
            at = _tensor(h).requires_grad_()
            (dh,) = torch.autograd.grad(self._activate(at), at, _tensor(da))
        return _numpy(dh)

    def take_grads(self) -> dict[str, Array]:
        """The float32 gradients by parameter name, in the shapes of the parameters. The sums then restart from zero."""
        out = {n: self._grad(n) for n, learns in self._learns.items() if learns}
        self.clear_grads()
        return out

    def clear_grads(self) -> None:
        """Set all weight gradients to zero, as after a backward pass that failed."""
        self._grads = {}

    def _in_out(self, stored: Array) -> Array:
        """A view `[experts, in, out]` of a stored weight or of its gradient."""
        return stored if self.layout.transposed else stored.swapaxes(1, 2)

    def _matrix(self, which: int, e: int) -> Array:
        out: Array = self._in_out(self._stored[self.layout.names[which]])[e]
        return out

    def _product(self, which: int, e: int, rows: Array) -> Array:
        out: Array = _rows(rows) @ self._matrix(which, e)
        if self.layout.has_bias:
            out += self._stored[self.layout.names[2 + which]][e]
        return out

    def _back(self, which: int, e: int, rows: Array) -> Array:
        return _rows(rows) @ self._matrix(which, e).T

    def _learn(self, which: int, e: int, rows: Array, out_grad: Array) -> None:
        weight, bias = self.layout.names[which::2] if self.layout.has_bias else (self.layout.names[which], "")
        if self._learns[weight]:
            self._in_out(self._grad(weight))[e] += _rows(rows).T @ _rows(out_grad)
        if bias and self._learns[bias]:
            self._grad(bias)[e] += _rows(out_grad).sum(axis=0)

    def _grad(self, name: str) -> Array:
        if name not in self._grads:
            self._grads[name] = np.zeros(self._stored[name].shape, np.float32)
        return self._grads[name]

    def _activate(self, h: torch.Tensor) -> torch.Tensor:
        name = "_apply_gate" if self.layout.gated else "act_fn"
        out: torch.Tensor = getattr(self._module, name)(h)
        return out


def _float32(parameter: torch.Tensor, what: str) -> Array:
    check_tensor(parameter, what)
    return _numpy(parameter)


def _rows(array: Array) -> Array:
    return np.asarray(array, np.float32)


def _tensor(array: Array) -> torch.Tensor:
    import torch

    # A copy, because torch warns about read-only arrays and because the activation may write into its input.
    return torch.from_numpy(np.array(array, np.float32, order="C"))


def _numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().numpy()
