"""Named patterns of imbalance: expert choices whose loads are declared, not drawn from a popularity.

`PATTERNS` names each pattern with its settings and its source. `draw_pattern` draws the choices.
"""

from collections.abc import Callable, Mapping

import numpy as np

from dysharp.base import I32, I64, Bools, ConfigError, Texts, frozen
from dysharp.specs import Model
from dysharp.workload.sampling import draw_uniform


@frozen
class Setting:
    """One number of a pattern, from `low` to `high`. `default` None: the string must give it. `whole`: an integer."""

    name: str
    low: float
    high: float
    default: float | None = None
    whole: bool = False


@frozen
class Layout:
    """What a pattern is drawn for: experts and top-k of the model, GPUs, tokens per GPU."""

    n_experts: int
    topk: int
    n_gpus: int
    tokens: int

    @property
    def n_tokens(self) -> int:
        """Tokens of all GPUs."""
        return self.n_gpus * self.tokens

    @property
    def place(self) -> I64:
        """`[tokens of all GPUs]` the place of each token at its source GPU."""
        return np.tile(np.arange(self.tokens, dtype=np.int64), self.n_gpus)


Values = Mapping[str, float]
Draw = Callable[[np.random.Generator, Layout, Values], I32]


@frozen
class _Pattern:
    """A named pattern.

    `settings`: a single setting without a name is the value behind the name, as in `ragged:0.25`.
    """

    settings: tuple[Setting, ...]
    summary: str
    source: str
    draw: Draw

    def form(self, name: str) -> str:
        """The routing string in words, such as `hot-experts:K=N:share=S`. Settings with a default stand in brackets."""
        parts = []
        for s in self.settings:
            shown = "N" if s.whole else "F"
            text = f":{s.name}={shown}" if s.name else f":{shown}"
            parts.append(text if s.default is None else f"[{text}]")
        return name + "".join(parts)


PATTERNS: dict[str, _Pattern] = {}
_SHARE = Setting("share", 0.0, 1.0)
_K = Setting("K", 1, 1 << 16, whole=True)
_TRTLLM = "TensorRT-LLM, tools/layer_wise_benchmarks, BalanceMethod"


def _pattern(name: str, source: str, *settings: Setting) -> Callable[[Draw], Draw]:
    """Register a function that draws choices as the pattern `name`. Its docstring is the summary that users see."""

    def register(draw: Draw) -> Draw:
        PATTERNS[name] = _Pattern(settings, draw.__doc__ or "", source, draw)
        return draw

    return register


def draw_pattern(name: str, values: Values, model: Model, n_gpus: int, tokens: int, rng: np.random.Generator) -> tuple[I32, str, Texts]:
    """The choices of a pattern, its description and notes for a header.

    Choices: `[n_gpus * tokens, topk]` int32, distinct within a token, -1 = the token is absent. Raises ConfigError for
    values that no routing of this model and these GPUs can have.
    """
    layout = Layout(model.n_experts, model.topk, n_gpus, tokens)
    expert = PATTERNS[name].draw(rng, layout, values)
    text = ", ".join(f"{key} {value:g}" if key else f"{value:g}" for key, value in values.items())
    absent = int((expert[:, 0] < 0).sum())
    note = f"{absent} of {layout.n_tokens} token places are empty: sources hold different numbers of tokens"
    return expert, f"{name} {text}".strip(), (note,) if absent else ()


@_pattern("spread", f"{_TRTLLM}.Balanced")
def _spread(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """perfect balance: experts take turns, and a token's experts lie on as many GPUs as possible"""
    # In turn: the first expert of every GPU, then the second one. A token takes the next k of them.
    per_gpu = -(-layout.n_experts // layout.n_gpus)
    gpu, local = np.divmod(np.arange(layout.n_experts), per_gpu)
    turn = np.lexsort((gpu, local)).astype(np.int32)
    first = rng.permutation(layout.n_tokens).astype(np.int64) * layout.topk
    return np.asarray(turn[(first[:, None] + np.arange(layout.topk)) % layout.n_experts])


@_pattern("hot-experts", f"{_TRTLLM}.ImbalancedExperts, there on every rank", _K, _SHARE)
def _hot_experts(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """K experts (drawn) take this share of all choices, the others are equally likely"""
    n_hot = int(values["K"])
    hot = _quota("hot-experts", layout, values["share"], n_hot)
    order = rng.permutation(layout.n_experts).astype(np.int32)
    return _draw_pools(rng, hot, order[:n_hot], order[n_hot:], layout.topk)


@_pattern("hot-rank", f"{_TRTLLM}.ImbalancedRanks", _SHARE, Setting("rank", 0, 1 << 16, 0, whole=True))
def _hot_rank(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """the experts of one GPU take this share of all choices"""
    rank = int(values["rank"])
    if layout.n_experts % layout.n_gpus:
        raise ConfigError(f"routing hot-rank: found {layout.n_experts} experts on {layout.n_gpus} GPUs, expected equally many on each GPU")
    if rank >= layout.n_gpus:
        raise ConfigError(f"routing hot-rank: found rank={rank}, expected 0 to {layout.n_gpus - 1}")
    held = layout.n_experts // layout.n_gpus
    order = np.roll(np.arange(layout.n_experts, dtype=np.int32), -rank * held)
    hot = _quota("hot-rank", layout, values["share"], held)
    return _draw_pools(rng, hot, order[:held], order[held:], layout.topk)


@_pattern(
    "rotating", "FlexMoE, arXiv 2304.03946: loads are skewed and change over time; the block is ours", _K, _SHARE,
    Setting("block", 1, 1 << 30, 64, whole=True),
)  # fmt: skip
def _rotating(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """as hot-experts, but every block of tokens has other hot experts"""
    n_hot = int(values["K"])
    quota = _quota("rotating", layout, values["share"], n_hot)
    order = rng.permutation(layout.n_experts).astype(np.int32)
    block = layout.place // int(values["block"])
    expert = np.empty((layout.n_tokens, layout.topk), np.int32)
    for b in range(int(block[-1]) + 1):
        turned = np.roll(order, -b * n_hot)
        now = np.flatnonzero(block == b)
        expert[now] = _draw_pools(rng, quota[now], turned[:n_hot], turned[n_hot:], layout.topk)
    return expert


@_pattern("burst", "SGLang, layers/moe/topk.py masks padded tokens, which are all alike; the run is ours", Setting("", 0.0, 1.0))
def _burst(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """this part of every source's tokens, in one run, repeats one token: all choose the same k experts"""
    expert = _uniform(rng, layout)
    length = round(values[""] * layout.tokens)
    begin = int(rng.integers(0, layout.tokens - length + 1))
    expert[(layout.place >= begin) & (layout.place < begin + length)] = rng.permutation(layout.n_experts)[: layout.topk]
    return expert


@_pattern("ragged", "DeepEP pull request 744: unequal token counts per rank", Setting("", 0.0, 1.0))
def _ragged(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """sources hold between this part and all of the tokens, in even steps; experts are uniform"""
    share = np.linspace(values[""], 1.0, layout.n_gpus) if layout.n_gpus > 1 else np.ones(1)
    held = rng.permutation(np.rint(share * layout.tokens).astype(np.int64))
    return _without(_uniform(rng, layout), layout.place >= np.repeat(held, layout.tokens))


@_pattern("zero-tokens", "SGLang pull request 25397: ranks without a token under DP attention", Setting("", 1, 1 << 16, 1, whole=True))
def _zero_tokens(rng: np.random.Generator, layout: Layout, values: Values) -> I32:
    """this many sources (drawn) hold no token; experts are uniform"""
    n_empty = int(values[""])
    if n_empty >= layout.n_gpus:
        raise ConfigError(f"routing zero-tokens: found {n_empty} empty sources, expected fewer than the {layout.n_gpus} GPUs")
    empty = np.isin(np.arange(layout.n_gpus), rng.permutation(layout.n_gpus)[:n_empty])
    return _without(_uniform(rng, layout), np.repeat(empty, layout.tokens))


def _uniform(rng: np.random.Generator, layout: Layout) -> I32:
    return draw_uniform(rng, layout.n_tokens, layout.n_experts, layout.topk)


def _without(expert: I32, absent: Bools) -> I32:
    return np.where(absent[:, None], np.int32(-1), expert)


def _quota(name: str, layout: Layout, share: float, n_hot: int) -> I64:
    """`[tokens of all GPUs]` choices of each token among the hot experts; their mean is `share * topk`.

    Neighbouring tokens differ by at most one. Raises ConfigError where distinct experts do not allow the share.
    """
    if n_hot >= layout.n_experts:
        raise ConfigError(f"routing {name}: found {n_hot} hot experts, expected fewer than the {layout.n_experts} experts")
    n_cold, topk = layout.n_experts - n_hot, layout.topk
    low, high = max(0.0, 1.0 - n_cold / topk), min(1.0, n_hot / topk)
    if not low <= share <= high:
        why = f"a token chooses an expert once, and {n_hot} of {layout.n_experts} experts are hot"
        raise ConfigError(f"routing {name}: found share={share:g}, expected {low:.3g} to {high:.3g} at top-{topk} ({why})")
    # The small part keeps a share such as 0.3 of 10 choices from rounding to 2.
    total = np.floor(np.arange(layout.tokens + 1) * (share * topk) + 1e-9).astype(np.int64)
    return np.tile(np.diff(total), layout.n_gpus)


def _draw_pools(rng: np.random.Generator, n_hot: I64, hot: I32, cold: I32, topk: int) -> I32:
    """Token t takes `n_hot[t]` distinct experts of `hot` and the others of `cold`, all equally likely."""
    expert = np.empty((len(n_hot), topk), np.int32)
    for n in np.unique(n_hot).tolist():
        tokens = np.flatnonzero(n_hot == n)
        for pool, columns in ((hot, slice(0, n)), (cold, slice(n, topk))):
            taken = columns.stop - columns.start
            if taken:
                expert[tokens, columns] = pool[draw_uniform(rng, len(tokens), len(pool), taken)]
    return expert
