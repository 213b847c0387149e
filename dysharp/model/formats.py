"""`Formats`: the one dial of precision. In which data types a model holds weights and KV, multiplies, keeps its state, and sends rows.

A precision is a name of `PRECISIONS`, or a name and parts: "fp8,products=bf16,state=bf16,sent=fp8". It means the same in every verb.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from dysharp.base import ByName, ConfigError, Texts, by_key, check_word, frozen, show
from dysharp.model.state import RECIPES, Recipe
from dysharp.specs import WholeModel


class WeightFormat(NamedTuple):
    """A format of weights. `weight_bytes`: bytes of a parameter with its scales; `compute`: type of the GEMM's products."""

    weight_bytes: float
    compute: str


FORMATS = {
    "bf16": WeightFormat(2.0, "bf16"), "fp8": WeightFormat(1.0, "fp8"), "fp8-block": WeightFormat(1.0 + 4.0 / 128**2, "fp8"),
    "mxfp8": WeightFormat(1.0 + 1.0 / 32, "mxfp8"), "nvfp4": WeightFormat(0.5 + 1.0 / 16, "fp4"), "mxfp4": WeightFormat(0.5 + 1.0 / 32, "bf16"),
    "mxfp4-fp8": WeightFormat(0.5 + 1.0 / 32, "w4a8"), "int4": WeightFormat(0.5 + 2.0 / 32, "bf16"),
    "int4-64": WeightFormat(0.5 + 2.0 / 64, "bf16"), "int4-128": WeightFormat(0.5 + 2.0 / 128, "bf16"), "int4-column": WeightFormat(0.5, "bf16"),
    **{f"int4-{n}-zeros": WeightFormat(0.5 + 2.5 / n, "bf16") for n in (32, 64, 128)},
}  # fmt: skip
"""Formats of weights: a scale per 128 x 128 block (DeepSeek-V3), per 16 values (NVFP4), per 32 values (OCP MX; Kimi's INT4), per 64 or 128
(GPTQ), beside it a zero point of 4 bits (AWQ; vLLM awq_marlin.py: qzeros); per column: next to nothing."""
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
ROW_BYTES = {"bf16": 2.0, "fp8": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "int8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of a value of a row of Dispatch and Combine: FP8 has an FP32 scale per 128 (DeepSeek-V3), INT8 one per row (CANN), the others a byte per 32
and per 16."""
COPIES = {"bf16": "bf16", "fp8": "fp8", "mxfp8": "mxfp8", "fp4": "nvfp4"}
"""Type of products -> the format of weights that are copied for them."""
WEIGHTS = ("attention", "experts", "dense", "head")
"""Parts of a model whose weights have a format: attention, routed experts, dense and shared FFN, head."""
PARTS = {
    "attention": "attention", "routed experts": "experts", "dense FFN": "dense", "shared experts": "dense", "MTP": "dense", "head": "head",
}  # fmt: skip
"""Part of `operators.Part` -> part of `WEIGHTS`. All others, such as the router, are BF16."""
Run = Callable[[str], str]
"""Type of products that is asked for -> type that a machine multiplies in."""


@frozen
class Formats:
    """Names of `FORMATS` by part of a model, of `KV_BYTES`, of `state.RECIPES` and of `ROW_BYTES`. Unless given, the head is BF16."""

    attention: str = "bf16"
    experts: str = "bf16"
    """Routed experts."""
    dense: str = "bf16"
    """Dense and shared FFN."""
    head: str = "bf16"
    kv: str = "bf16"
    products: str = ""
    """Type of activations and products, of `COPIES`; "": that of the weights. A head in BF16 keeps its own."""
    state: str = "bf16"
    """Weights, gradients and optimizer of training."""
    sent: str = ""
    """Rows of Dispatch; "": as the EP system sends them."""
    back: str = ""
    """Rows of Combine; "": as the EP system sends them."""

    def __post_init__(self) -> None:
        for name in WEIGHTS:
            check_word(getattr(self, name), FORMATS, f"precision: {name}: found {show(getattr(self, name))}")
        if self.kv not in KV_BYTES:
            raise ConfigError(f"precision: kv: found {show(self.kv)}, expected bf16 or fp8")
        known = {"products": ("", *COPIES), "state": RECIPES, "sent": ("", *ROW_BYTES), "back": ("", *ROW_BYTES)}
        for name, words in known.items():
            check_word(getattr(self, name), words, f"precision: {name}: found {show(getattr(self, name))}")

    def of(self, part: str) -> WeightFormat:
        """Format of a part of `operators.Part`."""
        return self._of(PARTS[part]) if part in PARTS else FORMATS["bf16"]

    def _of(self, own: str) -> WeightFormat:
        name, wanted = getattr(self, own), "" if own == "head" and self.head == "bf16" else self.products
        wanted = "mxfp4" if wanted == "fp4" and own != "head" and name.startswith("mxfp4") else wanted  # AMD's tensor cores know its blocks alone
        return FORMATS[name]._replace(compute=wanted or FORMATS[name].compute)

    @property
    def kv_bytes(self) -> float:
        """Bytes of a cached value."""
        return KV_BYTES[self.kv]

    @property
    def narrow(self) -> bool:
        """Whether any weight is narrower than BF16."""
        return set(self.weights()) != {"bf16"}

    def weights(self) -> Texts:
        """Formats of `WEIGHTS`."""
        return tuple(getattr(self, name) for name in WEIGHTS)

    def main(self, moe: bool) -> str:
        """Type of products of most work: of routed experts, or of a dense FFN."""
        return self._of("experts" if moe else "dense").compute

    def rows(self, run: Run = str) -> tuple[str, str]:
        """Rows of Dispatch and Combine: where nobody says so, experts that multiply in less than BF16 get FP8 rows, and results are BF16."""
        return self.sent or ("bf16" if run(self._of("experts").compute) == "bf16" else "fp8"), self.back or "bf16"

    def to_dict(self, run: Run = str) -> ByName:
        """Plain values for JSON."""
        weights = dict(zip(WEIGHTS, self.weights(), strict=True))
        products = {name: run(self._of(name).compute) for name in WEIGHTS}
        sent, back = self.rows(run)
        return {"weights": weights, "products": products, "kv": self.kv, "state": self.state, "sent": sent, "back": back}

    def line(self, model: WholeModel | None, run: Run = str) -> str:
        """What every verb prints. `model` None: a layer of routed experts alone. `run`: types in which its machine multiplies."""
        said = self.to_dict(run)
        weights, products = (_by_part({name: said[key][name] for name in _parts(model)}) for key in ("weights", "products"))
        rows = f"; rows {said['sent']} out, {said['back']} back" if model is None or model.layer else ""
        return f"formats: weights {weights}; products {products}; KV {self.kv}; state {self.state}{rows}"


def _parts(model: WholeModel | None) -> Iterator[str]:
    """Parts of `WEIGHTS` that a model has."""
    has = {"experts": True} if model is None else {
        "attention": True, "experts": model.layer is not None, "dense": bool(model.dense_hidden or model.shared_hidden), "head": True,
    }  # fmt: skip
    return (name for name in WEIGHTS if has.get(name))


def _by_part(names: Mapping[str, str]) -> str:
    """ "mxfp4 (experts), bf16": formats with their parts, and at the end BF16, which the rest has. A head in BF16 is not worth a word."""
    left = {part: name for part, name in names.items() if part != "head" or name != "bf16"}
    found = by_key((name, part) for part, name in left.items())
    if len(found) == 1:
        return next(iter(found))
    rest = ["bf16"] if found.pop("bf16", None) else []
    return ", ".join([*(f"{name} ({', '.join(parts)})" for name, parts in found.items()), *rest])


def linears(name: str, state: str = "bf16") -> Formats:
    """Every linear layer in one format."""
    return Formats(name, name, name, state=state)


PRECISIONS = {
    **{state: Formats(state=state) for state in ("bf16", "bf16-whole", "bf16-moments", "bf16-gradients")},
    **{state: linears("fp8-block", state) for state in ("fp8", "fp8-moments", "fp8-primary", "fp8-deepseek")}, "fp8-tensor": linears("fp8", "fp8"),
    "mxfp8": linears("mxfp8", "fp8"), **dict.fromkeys(("fp4", "nvfp4"), Formats("bf16", "nvfp4", "nvfp4", state="fp8")),
    "fp4-all": linears("nvfp4", "fp8"), "mxfp4": Formats("bf16", "mxfp4", "bf16"), "mxfp4-fp8": Formats("bf16", "mxfp4-fp8", "bf16"),
    **dict.fromkeys(("int4", "int4-experts"), Formats("bf16", "int4", "bf16")), "int4-all": linears("int4"),
}  # fmt: skip
"""Precision -> formats. "fp8": a scale per block (DeepSeek-V3); "fp8-tensor": one per tensor. Two names of one type differ in `state`: fp8-moments,
fp8-deepseek, bf16-moments, ... "fp4", "nvfp4" and "int4" are what checkpoints of models with latent attention hold (DeepSeek-V3's NVFP4 keeps
attention in BF16, Kimi's INT4 all but routed experts)."""
EVERY = {"fp4": "fp4-all", "nvfp4": "fp4-all", "int4": "int4-all"}
"""The same of models without latent attention: every linear layer (NVIDIA's NVFP4 of Qwen3; AWQ, GPTQ, w4a16 of compressed-tensors)."""
SAID = (*WEIGHTS, "kv", "products", "state", "sent", "back", "weights")
"""What may stand behind a name, as part=value. "weights": attention, experts and dense at once."""


def formats_of(precision: str, kv: str = "bf16", model: WholeModel | None = None) -> Formats:
    """The formats of a precision: a name of `PRECISIONS`, then part=value (`SAID`), joined with commas. Raises `ConfigError` with the nearest word.

    `kv`: where the text says none. `model`: a name means what checkpoints of this model hold (`EVERY`); without experts, what it says of routed
    experts alone holds for every linear layer.
    """
    name, *more = (word.strip() for word in precision.split(","))
    check_word(name, PRECISIONS, f"precision {show(name)}: unknown")
    base = replace(PRECISIONS[name if model is None or model.attention.mla else EVERY.get(name, name)], kv=kv)
    if model is not None and model.layer is None and base.dense == "bf16":
        base = replace(base, attention=base.experts, dense=base.experts)
    said: dict[str, str] = {}
    for word in more:
        part, equals, value = (one.strip() for one in word.partition("="))
        if not equals:
            raise ConfigError(f"precision: found {show(word)} behind {name}, expected part=value with one of {', '.join(SAID)}")
        check_word(part, SAID, f"precision: {show(word)}: unknown part")
        if part in said:
            raise ConfigError(f"precision: found {part} twice in {show(precision)}, expected it once")
        said[part] = value
    every = said.pop("weights", None)
    return replace(base, **(dict.fromkeys(WEIGHTS[:3], every) if every else {}) | said)


def recipe_for(formats: Formats) -> Recipe:
    """The recipe of a step's state: linears whose products are in BF16 have no copies."""
    return replace(own := RECIPES[formats.state], fp8=tuple(part for part in own.fp8 if formats.of(part).compute != "bf16"))


def published(model: WholeModel, asked: str = "") -> str:
    """The precision of the published checkpoint: what the model's file says, else FP8 where the experts are FP8, else BF16. If one is `asked` for,
    that one; "fp8" is the one that this model is published in."""
    own = model.checkpoint or (model.layer.gemm_dtype if model.layer else "bf16")
    return own if not asked or own.startswith(f"{asked}-") else asked


def trained(formats: Formats) -> Formats:
    """The formats of a training step: its weights are copies in the type of their products, beside those that the optimizer updates (`state`).

    Raises `ConfigError` for weights of 4 bits whose products are wider: a checkpoint of inference, which no recipe here trains.
    """
    for name in WEIGHTS[:3]:
        own = FORMATS[getattr(formats, name)]
        if own.weight_bytes < 1 and own.compute != "fp4":
            raise ConfigError(f"precision: found {getattr(formats, name)} weights, which no optimizer updates, expected {_names(TRAINED)}")
    copies = {name: _copy(formats, name) for name in WEIGHTS}
    return replace(formats, **copies)


TRAINED = ("bf16", "fp8", "fp8-tensor", "mxfp8", "fp4", "fp4-all")
"""Precisions that a step can have, without the variants of their state."""


def _names(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _copy(formats: Formats, name: str) -> str:
    own, wanted = getattr(formats, name), formats._of(name).compute
    return str(own) if FORMATS[own].compute == wanted else COPIES[wanted]
