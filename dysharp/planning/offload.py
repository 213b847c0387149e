"""Activation offload: saved inputs of modules leave for the host behind a forward pass and come back before the backward pass, beside computing.

The names are those of Megatron's --offload-modules. `training.costs.beside` has the time of the copies, which share the GPU's link with its NICs.
"""

from functools import lru_cache

from dysharp.base import Texts
from dysharp.model import Layout, Recipe
from dysharp.specs import WholeModel
from dysharp.training.memory import Saving, is_dropped, saved_of_layer

OFFLOADED = {
    "attn_norm": "block input", "qkv_linear": "norm output", "core_attn": "q, k, v", "attn_proj": "attention output", "mlp_norm": "FFN norm input",
    "expert_fc1": "permuted rows", "moe_act": "expert FC1 output",
}  # fmt: skip
"""Module -> the saved tensor that is its input."""
PLAIN = {True: "*E", False: "*-"}
"""Kind of a layer (`WholeModel.stack`) by whether it has experts: a search knows no others."""
SETS: tuple[Texts, ...] = ((), ("core_attn",), ("core_attn", "expert_fc1", "moe_act"))
"""Offload sets that a plan tries where none are named."""
LAYERS = 2
"""Layers whose offloaded tensors are on the GPU: one that leaves, one that comes back."""


@lru_cache(maxsize=1 << 12)
def offloaded_bytes(model: WholeModel, layout: Layout, moe: bool, saving: Saving, recipe: Recipe, modules: Texts) -> float:
    """Bytes per token of a layer that leave: what recomputation does not drop anyway."""
    names = {OFFLOADED[module] for module in modules}
    return sum(one.bytes for one in saved_of_layer(model, layout, PLAIN[moe], saving, recipe) if one.op in names and not is_dropped(one, saving))
