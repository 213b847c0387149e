"""Every weight of a model, once: parameters, FLOPs and bytes of state follow from this table; parameters that a model has, and that a token uses.

The weights of a layer are those of its operators; what stands before and behind the layers is here.
"""

import functools
from dataclasses import replace

from dysharp.base import frozen
from dysharp.model.operators import PARTS, WHOLE, Cut, Part, Split, Weight, layer_operators, matrix, vector
from dysharp.specs import WholeModel


@functools.cache
def layer_weights(model: WholeModel, kind: str) -> tuple[Weight, ...]:
    """The weights of one layer of a kind (`WholeModel.stack`)."""
    return tuple(op for op in layer_operators(model, kind) if isinstance(op, Weight))


@functools.cache
def embedding_weights(model: WholeModel) -> tuple[Weight, ...]:
    """The table of token vectors, and of positions where they are learned. A token looks up one row, which counts as nothing used."""
    table = _looked_up("embedding", model, model.vocab, "tp")
    positions = _looked_up("positions", model, model.positions, "none")
    return (table, positions) if model.positions else (table,)


def _looked_up(weight: str, model: WholeModel, rows: int, split: Split) -> Weight:
    return Weight(
        name=weight, piece="embedding", part="embedding", weight=weight, inputs=model.hidden, outputs=rows, used=0, split=split, product=False
    )


@functools.cache
def head_weights(model: WholeModel, cut: Cut = WHOLE) -> tuple[Weight, ...]:
    """The last norm and the head. A tied head has no parameters of its own (`count` 0), but a product."""
    head = replace(matrix("head", "head", model.hidden, model.vocab, cut, name="head", piece="head"), count=0 if model.tied else 1)
    bias = (vector("head", "head bias", model.vocab, split="tp"),) if model.head_bias else ()
    streams = (vector("norms", "stream sum", model.streams * (model.streams * model.hidden + 1) + 1),) if model.streams > 1 else ()
    return (_norm(model, "last norm"), *streams, head, *bias)


@functools.cache
def mtp_weights(model: WholeModel, cut: Cut = WHOLE) -> tuple[Weight, ...]:
    """One MTP layer besides its transformer layer: the joining matrix [hidden, 2 hidden] and three norms. Embedding and head are shared."""
    return (matrix("MTP", "joining", 2 * model.hidden, model.hidden, cut, "none", name="MTP", piece="MTP"), _norm(model, "MTP norms", 3))


def _norm(model: WholeModel, weight: str, count: int = 1) -> Weight:
    return vector("norms", weight, model.hidden * model.norm_vectors, count, count)


@frozen
class _Parameters:
    """Numbers of parameters. MTP layers are counted separately: the totals of model cards are without them."""

    parts: dict[Part, int]
    """{part: all parameters}; "MTP" is not in `total`."""
    active_parts: dict[Part, int]
    """{part: parameters that a token uses}; the embedding counts 0."""

    @property
    def total(self) -> int:
        """All parameters, without MTP."""
        return sum(n for part, n in self.parts.items() if part != "MTP")

    @property
    def active(self) -> int:
        """Used by a token, with the head and without the embedding."""
        return sum(n for part, n in self.active_parts.items() if part != "MTP")

    @property
    def active_inner(self) -> int:
        """Used by a token between embedding and head."""
        return self.active - self.active_parts["head"]

    @property
    def active_both(self) -> int:
        """Used by a token, counting the whole embedding and the head; a tied matrix counts twice."""
        return self.active + self.parts["embedding"]


def parameters_of(model: WholeModel) -> _Parameters:
    """All parameters of a model by part, to the last one."""
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    active: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for weight, times in counted_weights(model):
        parts[weight.part] += weight.parameters * times
        active[weight.part] += weight.active * times
    for weight in whole_mtp_layer(model):
        parts["MTP"] += weight.parameters * model.mtp
        active["MTP"] += weight.active * model.mtp
    if model.mtp:  # the head is used once more, and is no new parameter
        active["MTP"] += model.vocab * model.hidden * model.mtp
    return _Parameters(parts, active)


def counted_weights(model: WholeModel) -> list[tuple[Weight, int]]:
    """Every weight outside MTP with the number of layers that have it."""
    layers = [(w, times) for kind, times in model.kinds.items() for w in layer_weights(model, kind)]
    return [(w, 1) for w in embedding_weights(model)] + layers + [(w, 1) for w in head_weights(model)]


def whole_mtp_layer(model: WholeModel) -> tuple[Weight, ...]:
    """The weights of one MTP layer: a transformer layer like the last, the joining matrix, three norms."""
    return (*layer_weights(model, model.kind(model.n_layers)), *mtp_weights(model))
