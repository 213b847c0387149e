"""State of a rank: weights, gradients and optimizer, by the recipe of its precision. Bytes per parameter are those of Megatron."""

import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from dysharp.base import Amounts, Texts, entry_of, frozen, read_toml, show
from dysharp.model.layout import Chunk, Layout
from dysharp.model.operators import Weight
from dysharp.model.weights import embedding_weights, head_weights, layer_weights, mtp_weights
from dysharp.specs import WholeModel

FILE = Path(__file__).with_name("recipes.toml")
VOCAB_UNIT = 128
"""Megatron pads the vocabulary to a multiple of this number times the tensor parallel degree (--make-vocab-size-divisible-by)."""


@frozen
class Recipe:
    """Bytes per parameter that a rank holds. `optimizer` bytes are shared by the data parallel ranks if `sharded`.

    `weights`: of a linear in FP8, with its copies; all others are BF16.
    """

    name: str
    meaning: str
    weights: float
    gradients: float
    optimizer: float
    sharded: bool = True
    fp8: Texts = ()
    """Parts (`operators.Part`) whose linears are in FP8: they have copies of their weights, and keep their inputs as FP8."""
    narrow: bool = False
    """Tensors between linears are kept in fewer bits, too (`operators.SavedTensor.narrow`)."""

    @property
    def exchanged(self) -> tuple[float, float]:
        """Bytes per parameter that replicas reduce behind a backward pass, and gather ahead of a forward pass; unless they share the optimizer, they
        all-reduce gradients, which moves as much as reducing and gathering them.
        """
        return (self.gradients, BF16) if self.sharded else (2 * self.gradients, 0)

    def sharing(self, layout: Layout, copies: int) -> tuple[int, int]:
        """Ranks that share the optimizer of dense and of expert parameters; sharded weights share it in any recipe. `copies`: as in `state_bytes`."""
        return (layout.dp * layout.cp * copies, layout.edp * copies) if self.sharded or layout.fsdp > 1 else (1, 1)


RECIPES = {name: Recipe(name, **facts | {"fp8": tuple(facts.get("fp8", ()))}) for name, facts in read_toml(FILE).items()}
PLAIN = RECIPES["bf16"]
BF16 = 2


def recipe_of(name: str) -> Recipe:
    """The recipe called `name`. Raises `ConfigError` with the nearest name."""
    return entry_of(name, RECIPES, f"precision {show(name)}: unknown")


@frozen
class RankParameters:
    """Parameters that one rank holds, after cutting."""

    dense: float
    """Of everything but routed experts."""
    experts: float


def padded_vocab(model: WholeModel, layout: Layout) -> int:
    """Rows of embedding and head with Megatron's padding."""
    unit = VOCAB_UNIT * layout.tp
    return math.ceil(model.vocab / unit) * unit


def _weights_of_chunk(model: WholeModel, chunk: Chunk, first: bool = False) -> Iterator[Weight]:
    """Every weight of a chunk, once per layer. A chunk with MTP layers behind the first stage holds a copy of the embedding."""
    for layer in chunk.layers():
        yield from layer_weights(model, model.kind(layer))
    for _ in range(chunk.mtp):
        yield from layer_weights(model, model.kind(model.n_layers))
        yield from mtp_weights(model)
    if chunk.embedding or (chunk.mtp and not first) or (chunk.head and model.tied and not first):
        yield from embedding_weights(model)
    if chunk.head:
        yield from head_weights(model)


def _weights_of_rank(model: WholeModel, chunks: Iterable[Chunk]) -> Iterator[Weight]:
    """Every weight of a rank. Embedding and tied head, or MTP, on one rank share their table."""
    held = list(chunks)
    has_embedding = any(chunk.embedding for chunk in held)
    for chunk in held:
        yield from _weights_of_chunk(model, chunk, first=has_embedding)


def _share(weight: Weight, model: WholeModel, layout: Layout) -> float:
    """Parameters of `weight` on one rank."""
    rows = weight.parameters
    if weight.outputs == model.vocab and weight.part in ("embedding", "head"):
        rows = rows // model.vocab * padded_vocab(model, layout)
    cut = {"tp": layout.tp, "experts": layout.ep * layout.etp, "none": 1}[weight.split]
    return rows / cut


def rank_parameters(model: WholeModel, layout: Layout, chunks: Iterable[Chunk], linears: Collection[str] | None = None) -> RankParameters:
    """Parameters of the rank that holds `chunks`; with `linears`, of matrices of these parts alone."""
    dense = experts = 0.0
    for weight in _weights_of_rank(model, chunks):
        if linears is not None and not (weight.product and weight.part in linears):
            continue
        if weight.split == "experts":
            experts += _share(weight, model, layout)
        else:
            dense += _share(weight, model, layout)
    return RankParameters(dense, experts)


def state_bytes(held: RankParameters, copied: RankParameters, layout: Layout, recipe: Recipe, copies: int = 1) -> Amounts:
    """{"weights", "gradients", "optimizer": bytes} of a rank; of sharded weights and gradients, its part.

    `copied`: what it holds in FP8. `copies`: ranks of a pipeline that hold the same stage and share its optimizer, as replicas do (2: DualPipe).
    """
    over, over_experts = recipe.sharing(layout, copies)
    total, narrow = (one.dense / layout.fsdp + one.experts / layout.expert_fsdp for one in (held, copied))
    optimizer = recipe.optimizer * (held.dense / over + held.experts / over_experts)
    weights = BF16 * total + (recipe.weights - BF16) * narrow
    return {"weights": weights, "gradients": recipe.gradients * total, "optimizer": optimizer}


def dummy_bytes(model: WholeModel, layout: Layout, chunks: Iterable[Chunk]) -> float:
    """Dummy weight gradients: Transformer Engine keeps one BF16 tensor for every shape of a matrix whose gradient is added to the main gradient."""
    shapes = set()
    for weight in _weights_of_rank(model, chunks):
        if weight.product and weight.part != "router":
            cut = layout.etp if weight.split == "experts" else layout.tp if weight.split == "tp" else 1
            outputs = padded_vocab(model, layout) if weight.part == "head" else weight.outputs
            shapes.add((weight.inputs, outputs, cut))
    return sum(BF16 * inputs * outputs / cut for inputs, outputs, cut in shapes)
