"""Parameters of a model: all of them, and those that a token uses."""

from dataclasses import dataclass

from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.weights import PARTS, Part, Weight, embedding_weights, head_weights, layer_weights, mtp_weights


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters. MTP layers are apart: the totals of model cards are without them."""

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


def parameters_of(model: WholeModel) -> Parameters:
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
    return Parameters(parts, active)


def counted_weights(model: WholeModel) -> list[tuple[Weight, int]]:
    """Every weight outside MTP with the number of layers that have it."""
    dense = [(w, model.dense_layers) for w in layer_weights(model, moe=False)] if model.dense_layers else []
    full = model.moe_layers - model.linear_layers
    moe = [(w, full) for w in layer_weights(model, moe=True)] if full else []
    moe += [(w, model.linear_layers) for w in layer_weights(model, moe=True, linear=True)] if model.linear_layers else []
    return [(w, 1) for w in embedding_weights(model)] + dense + moe + [(w, 1) for w in head_weights(model)]


def whole_mtp_layer(model: WholeModel) -> tuple[Weight, ...]:
    """The weights of one MTP layer: a transformer layer like the last, the joining matrix, three norms."""
    return (*layer_weights(model, moe=model.layer is not None), *mtp_weights(model))
