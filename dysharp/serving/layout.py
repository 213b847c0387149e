"""`ServeLayout`: how one replica of a served model is spread over GPUs."""

import re

from dysharp.base import ConfigError, Tally, frozen, show
from dysharp.model.layout import Layout
from dysharp.model.operators import Cut
from dysharp.specs import WholeModel

KEYS = ("tp", "dp", "ep", "slots", "pp")


@frozen
class ServeLayout:
    """Degrees of one replica. Raises `ConfigError` for a value below 1 or degrees that do not divide each other.

    `tp`: GPUs that share the heads of a request. `dp`: attention groups with requests of their own. `ep`: GPUs that share the routed experts;
    the other degree of the experts, `tp x dp / ep`, cuts every expert. `slots`: expert slots of all GPUs beyond the model's experts (EPLB). `pp`:
    stages of layers, one behind the other, each on `tp x dp` GPUs.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    slots: int = 0
    pp: int = 1

    def __post_init__(self) -> None:
        for key in KEYS:
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < (key != "slots") or value > 1 << 12:
                raise ConfigError(f"layout: {key}: found {show(value)}, expected {'0' if key == 'slots' else '1'} to {1 << 12}")
        if (self.tp * self.dp) % self.ep:
            raise ConfigError(f"layout: ep: found {self.ep}, expected a divisor of tp x dp = {self.tp * self.dp}")

    @property
    def cut(self) -> Cut:
        """What the layout makes of a layer: every GPU of an attention group has all its rows."""
        return Cut(self.tp, 1, self.ep, self.moe_tp)

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.stage_gpus * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one stage of layers."""
        return self.tp * self.dp

    @property
    def moe_tp(self) -> int:
        """GPUs that share one expert."""
        return self.stage_gpus // self.ep

    @property
    def name(self) -> str:
        """Such as "TP8", "DP8 EP8", "TP4 DP2 EP8", "TP8 PP2"."""
        parts = [f"{key.upper()}{getattr(self, key)}" for key in ("tp", "dp", "ep", "pp") if getattr(self, key) > 1]
        return " ".join(parts) or "TP1"

    def conflicts(self, model: WholeModel, gpus: int = 1, domain_gpus: int = 1) -> list[str]:
        """Why the layout does not fit the shape of `model`, or `gpus` GPUs in domains of `domain_gpus`."""
        a, moe = model.attention, model.layer
        slots, hidden = (moe.n_experts + self.slots, moe.expert_hidden) if moe else (self.ep, self.moe_tp)
        checks = (
            (self.pp > model.n_layers, f"{model.n_layers} layers do not fill {self.pp} stages"),
            (a.heads % self.tp, f"{a.heads} heads do not divide by TP{self.tp}"),
            (not a.mla and a.kv_heads % self.tp and self.tp % a.kv_heads, f"TP{self.tp} is no divisor and no multiple of {a.kv_heads} KV heads"),
            (not moe and self.ep * self.dp > 1, "a dense model has no experts to share: use replicas"),
            (not moe and model.dense_hidden % self.tp, f"an FFN of {model.dense_hidden} does not divide by TP{self.tp}"),
            (slots % self.ep, f"{slots} expert slots do not divide by EP{self.ep}"),
            (hidden % self.moe_tp, f"experts of {hidden} do not divide by {self.moe_tp} GPUs"),
            (not Layout.fits(1, 1, self.stage_gpus, gpus, domain_gpus)[2], f"groups of {self.stage_gpus} GPUs split NVLink domains of {domain_gpus}"),
        )
        return [text for wrong, text in checks if wrong]


def serve_layout_of(text: str) -> ServeLayout:
    """A layout from text such as "tp=8", "dp=16,ep=16" or "TP4 DP2 EP8". Raises `ConfigError`."""
    values: Tally = {}
    for part in re.split(r"[,\s]+", text.strip()):
        found = re.fullmatch(r"([a-zA-Z]+)=?(\d{1,4})", part)
        if not found or found[1].lower() not in KEYS or found[1].lower() in values:
            raise ConfigError(f"layout: found {show(part)}, expected tp=N, dp=N, ep=N, pp=N or slots=N, each at most once")
        values[found[1].lower()] = int(found[2])
    return ServeLayout(**values)
