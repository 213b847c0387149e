"""Run a user's own MoE block on the functional machine."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from dysharp.errors import ConfigError
from dysharp.functional.torch.extra import require_torch, require_transformers
from dysharp.functional.torch.machine import MoeMachine

if TYPE_CHECKING:
    import torch


def wrap(block: torch.nn.Module, machine: MoeMachine) -> torch.nn.Module:
    """A module like `block` whose routed experts run on `machine`; everything else stays the block's own code.

    Every submodule named `experts` is replaced, so `block` may be a MoE block, a layer or a model. The result shares
    all parameters and buffers with `block` under the same names; `block` itself is not changed, nor does `.train()` or
    a hook on the result reach it. Inputs and outputs are those of `block`, float32 or bfloat16 on the CPU; gradients
    reach the inputs, the router (through the gate weights) and the expert weights and biases.

    Raises ConfigError when torch is missing, for a transformers block of a release before 5, when there is no
    `experts`, when an `experts` is no layout the machine knows, or is called with other arguments than hidden states,
    expert ids and gate weights.
    """
    require_torch()
    if type(block).__module__.startswith("transformers."):
        require_transformers()
    from dysharp.functional.torch.bridge import MachineExperts

    places = {name: m for name, m in block.named_modules() if name.rpartition(".")[2] == "experts"}
    if not places:
        children = ", ".join(n for n, _ in block.named_children()) or "none"
        raise ConfigError(f"{type(block).__name__}: found no submodule named experts among {children}, expected a MoE block")
    twins: dict[int, torch.nn.Module] = {id(m): MachineExperts(m, machine, f"{type(block).__name__}.{n}") for n, m in places.items()}
    return _twin(block, twins)


def _twin(module: torch.nn.Module, twins: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """A copy of the tree of modules around the same parameters and buffers, with the modules in `twins` (by id)
    replaced.
    """
    if id(module) not in twins:
        twin = copy.copy(module)
        twins[id(module)] = twin
        # The tables (parameters, buffers, hooks ...) are copied, what they hold is not.
        vars(twin).update({k: copy.copy(v) for k, v in vars(twin).items() if isinstance(v, dict | set)})
        for name, child in module.named_children():
            twin.add_module(name, _twin(child, twins))
    return twins[id(module)]
