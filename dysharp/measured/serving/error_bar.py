"""How far predictions of TPOT miss runs like a point; a test compares the numbers with the packaged runs."""

from typing import NamedTuple

from dysharp.serving.work import Load, Replica


class Bar(NamedTuple):
    """Errors of runs of one group, in percent: median, and what 90 % of the runs stay below."""

    group: str
    median: float
    p90: float

    def around(self, value: float) -> tuple[float, float]:
        """Between which values nine of ten measurements of a prediction lie."""
        return value / (1 + self.p90 / 100), value / max(0.05, 1 - self.p90 / 100)


BARS = {
    "dense": Bar("dense models", 7.0, 22.4),
    "one group": Bar("MoE models with tensor parallel attention", 9.9, 34.4),
    "groups": Bar("MoE models with attention groups", 22.7, 73.9),
    "apart": Bar("prefill and decode apart", 13.6, 34.3),
}
MODELS = ("deepseek-v3", "qwen3-32b", "minimax-m2.5", "llama3-8b", "qwen3-235b")
GPUS = ("h100-sxm", "h200-sxm", "b200", "gb200")
MOST_EP, MOST_EP_APART = 8, 32
PROMPTS, ANSWERS = (128, 32768), (100, 8192)
"""Models, GPUs, EP degrees and lengths of the runs that are judged."""


def bar_of(replica: Replica, *, apart: bool = False) -> Bar:
    """The errors of runs that are most like a point."""
    if replica.model.layer is None:
        return BARS["dense"]
    if apart:
        return BARS["apart"]
    return BARS["groups" if replica.layout.dp > 1 else "one group"]


def outside_of(replica: Replica, load: Load, *, apart: bool = False) -> list[str]:
    """What the replica or load has and no judged run had, each as "found (measured: ...)"."""
    most, ep = MOST_EP_APART if apart else MOST_EP, replica.layout.ep
    checks = (
        (replica.model.name in MODELS, f"model {replica.model.name} (measured: {', '.join(MODELS)})"),
        (replica.rates.gpu.name in GPUS, f"GPU {replica.rates.gpu.name} (measured: {', '.join(GPUS)})"),
        (ep <= most or replica.layout.dp == 1, f"EP{ep} (measured: up to EP{most})"),
        (PROMPTS[0] <= load.prompt <= PROMPTS[1], f"prompts of {load.prompt:g} tokens (measured: {PROMPTS[0]} to {PROMPTS[1]:,})"),
        (ANSWERS[0] <= load.answer <= ANSWERS[1], f"answers of {load.answer:g} tokens (measured: {ANSWERS[0]} to {ANSWERS[1]:,})"),
        (not load.drafts, "drafts (no measured run says that it has them)"),
    )
    return [words for inside, words in checks if not inside]
