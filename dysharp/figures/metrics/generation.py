"""Generation after a prefill (DySHARP figure 27): one prefill of a batch, then tokens one by one."""

from dataclasses import replace

from dysharp.figures.metric import Seen, metric
from dysharp.figures.metrics.whole_steps import STAGES, forward_times, machine_of, model_of
from dysharp.specs import choice_int, load_model
from dysharp.steps import Layout
from dysharp.steps.block import Block

DECODED = 512
"""Tokens that the paper decodes after a prefill."""


def generation_us(here: Seen) -> float | None:
    """Time of a layer for prefill and decode of one batch per GPU; None where the figure lacks a point that it needs.

    A prompt is one sequence of the paper's length; decoding has one token per request.
    """
    batch, ahead = choice_int("paper_step.decode_batch"), forward_times(here)
    small = here.at(replace(here.point, tokens=batch))
    if here.point.direction != "fwd" or ahead is None or small is None:
        return None
    prompt = load_model(here.point.model).tokens_per_gpu
    prefill = ahead[0] + _prefill_us(here, prompt)
    return batch * prefill + DECODED * (small.time_us + decode_us(here, batch, prompt + DECODED / 2))


def _prefill_us(here: Seen, prompt: int) -> float:
    machine = machine_of(here)
    gpus = machine.cluster.n_gpus
    return Block(model_of(here), machine, Layout(pp=STAGES, ep=gpus, dp=gpus), prompt).layer(0, None).forward


def decode_us(here: Seen, batch: int, context: float) -> float:
    """What is beside the experts of a layer for one new token of `batch` requests: projections, and reading FP8 keys and values of all heads."""
    model, machine = model_of(here), machine_of(here)
    kv = model.attention.heads * (model.attention.qk_dim + model.attention.value_dim)
    return 4 * machine.gemm(batch, model.hidden, model.hidden, "fp8") + batch * context * kv / machine.cluster.hbm_bytes_per_us


@metric("generation_speedup", "speed-up of prefill and 512 decoded tokens", compares=True)
def generation_speedup(here: Seen, other: Seen) -> float | None:
    """Time of `over` divided by the time of the system."""
    own, theirs = generation_us(here), generation_us(other)
    return theirs / own if own and theirs else None


@metric("decode_layer_speedup", "speed-up of a MoE layer in decode", compares=True)
def decode_layer_speedup(here: Seen, other: Seen) -> float | None:
    """Time of the layer of `over` divided by that of the system, at the chosen tokens per GPU."""
    return other.time_us / here.time_us if here.point.tokens == choice_int("paper_step.decode_batch") else None
