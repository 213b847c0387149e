"""Run a user's own MoE block on the functional machine."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from dysharp.base import ConfigError
from dysharp.functional.torch.extra import require_torch, require_transformers
from dysharp.functional.torch.machine import MoeMachine

if TYPE_CHECKING:
    import torch


def wrap(block: torch.nn.Module, machine: MoeMachine) -> torch.nn.Module:
    """A module like `block` whose routed experts run on `machine`. The block's own code computes all other parts.

    Every submodule named `experts` is replaced, so `block` may be a MoE block, a layer or a model. The result shares
    all parameters and buffers with `block` under the same names; `block` does not change, and `.train()` or a hook on
    the result does not reach `block`. Inputs and outputs have the shapes of `block`, in float32 or bfloat16 on the CPU.
    Gradients reach the inputs, the router (through the gate weights) and the expert weights and biases.

    Raises ConfigError if torch is missing, if transformers is older than 5, if `block` has no submodule `experts`, if
    `block` is wrapped already, and if such a submodule has an unknown layout or other arguments than hidden states, expert ids and gate weights.
    """
    require_torch()
    if type(block).__module__.startswith("transformers."):
        require_transformers()
    from dysharp.functional.torch.bridge import MachineExperts

    places = {name: m for name, m in block.named_modules() if name.rpartition(".")[2] == "experts"}
    if not places:
        children = ", ".join(n for n, _ in block.named_children()) or "none"
        raise ConfigError(f"{type(block).__name__}: found no submodule named experts among {children}, expected a MoE block")
    for name, module in places.items():
        if isinstance(module, MachineExperts):
            raise ConfigError(f"{type(block).__name__}.{name}: found experts that are wrapped already, expected a block that was never wrapped")
    twins: dict[int, torch.nn.Module] = {id(m): MachineExperts(m, machine, f"{type(block).__name__}.{n}") for n, m in places.items()}
    return _twin(block, twins)


def _twin(module: torch.nn.Module, twins: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """A copy of the tree of modules around the same parameters and buffers, with the modules in `twins` (by id) replaced."""
    if id(module) not in twins:
        twin = copy.copy(module)
        twins[id(module)] = twin
        # The tables of parameters, buffers and hooks are copied. Their entries are shared.
        vars(twin).update({k: copy.copy(v) for k, v in vars(twin).items() if isinstance(v, dict | set)})
        for name, child in module.named_children():
            twin.add_module(name, _twin(child, twins))
    return twins[id(module)]
