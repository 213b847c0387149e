"""One step of a replica: one forward pass of prompts and decoding requests, as a sum of kernels.

`StepTable`: times of the steps of one replica under one scenario, so that a loop computes few steps.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil, sqrt

import numpy as np

from dysharp.base import Amounts, frozen
from dysharp.costs import OpTime, flight_us, link_us
from dysharp.model import StepBatch, head_weights, mtp_weights
from dysharp.serving.balance import largest_of
from dysharp.serving.engine import Engine
from dysharp.serving.layer import layer_ops
from dysharp.serving.work import ELEMENT, Replica, Scenario

SAMPLING_KERNELS = 6
"""Temperature, sort or threshold, softmax, choice, penalties, copy to the host (vLLM v1/sample, SGLang layers/sampler.py)."""


@frozen
class StepTime:
    """A step in microseconds. `parts`: device time by name; `kernels`: launches; `gaps`: device time between dependent kernels; `drafts`: passes of
    an MTP layer behind it."""

    parts: Amounts
    kernels: int
    gaps: float
    drafts: float = 0.0

    @property
    def device(self) -> float:
        """Time of the GPU."""
        return sum(self.parts.values()) + self.gaps + self.drafts


def _head_ops(replica: Replica, rows: float) -> Iterator[OpTime]:
    """Last norm, head, and the choice of a token for each of `rows` rows. The GPUs of an attention group share the head."""
    model, tp = replica.model, replica.layout.tp
    yield replica.small("norms", rows, model.hidden)
    yield from (replica.linear(op, rows) for op in head_weights(model, replica.layout.cut) if op.product)
    if tp > 1:
        yield OpTime("sampling", replica.machine.collective("all_gather", ELEMENT * rows * model.vocab, tp))
    yield replica.small("sampling", rows, model.vocab, SAMPLING_KERNELS)


def step_time(replica: Replica, batch: StepBatch, prompts_ended: float = 0.0, drafts: int = 0) -> StepTime:
    """The time of one step on the GPUs of every attention group, which have equal batches. `prompts_ended`: prompts whose first token is chosen.
    `drafts`: tokens that an MTP layer drafts for each request."""
    ends = [replica.small("embedding", batch.tokens, replica.model.hidden), replica.all_reduce("embedding", batch.tokens)]
    once = (*ends, *hops(replica, batch.tokens), *_head_ops(replica, batch.decodes * batch.queries + prompts_ended))
    every = [(op, times) for layer, times in _kinds(replica) for op in layer_ops(replica, batch, layer)] + [(op, 1) for op in once]
    parts: Amounts = {}
    for op, times in every:
        parts[op.name] = parts.get(op.name, 0.0) + times * op.us
    kernels, behind = sum(times * op.kernels for op, times in every), draft_us(replica, batch, drafts, prompts_ended)
    return StepTime({name: replica.over * us for name, us in parts.items()}, kernels, replica.over * kernels * replica.gap, behind)


def hops(replica: Replica, tokens: float) -> Iterator[OpTime]:
    """Rows from stage to stage: each GPU sends its part to its neighbour, over NVLink or by its NIC, and the group gathers them."""
    layout, machine, out = replica.layout, replica.machine, replica.machine.cluster.scale_out
    if layout.pp == 1:
        return
    moved = ELEMENT * tokens * replica.model.between / layout.tp
    between = 0 if out is None else min(layout.pp, -(-layout.gpus // out.domain_gpus)) - 1
    inside = flight_us(machine.gpu) + float(link_us(machine.gpu, machine.constants, moved))
    sent = (layout.pp - 1 - between) * inside
    if out is not None:
        sent += between * (out.latency_us + moved / (out.nic_GBps * out.nics_per_gpu * 1e3))
    gathered = (layout.pp - 1) * machine.collective("all_gather", moved * layout.tp, layout.tp)
    yield OpTime("stage to stage", sent + gathered, (layout.pp - 1) * (2 + (layout.tp > 1)))


def draft_us(replica: Replica, batch: StepBatch, drafts: int, prompts_ended: float = 0.0) -> float:
    """`drafts` draft tokens of every request by an MTP layer behind the step of `batch`, each by the joining matrix, a layer like the last, and the
    head. The first pass has all tokens of the step, those of prompts and drafts, too; others one of each request (vLLM v1/spec_decode/eagle.py,
    propose; SGLang: draft extend)."""
    requests = batch.decodes + prompts_ended
    later = StepBatch(decodes=requests, context=batch.context or batch.past + batch.new, usual=batch.usual)
    passes = ((batch, min(1, drafts)), (later, drafts - 1))
    return replica.over * sum(times * _draft_pass_us(replica, one, requests) for one, times in passes if times > 0)


def _draft_pass_us(replica: Replica, batch: StepBatch, requests: float) -> float:
    joining = [replica.linear(op, batch.tokens) for op in mtp_weights(replica.model) if op.product]
    ops = [*joining, *layer_ops(replica, batch, replica.model.n_layers - (not replica.model.stack)), *_head_ops(replica, requests)]
    return sum(op.us + op.kernels * replica.gap for op in ops)


def _kinds(replica: Replica) -> list[tuple[int, int]]:
    """(number of a layer, layers like it)."""
    numbers = {replica.model.kind(layer): layer for layer in reversed(range(replica.model.n_layers))}
    return [(numbers[kind], times) for kind, times in replica.model.kinds.items()]


PROMPT_SIZES = 4


def decode_batch(scenario: Scenario, batch: float, groups: int = 1) -> StepBatch:
    """`batch` requests somewhere in their outputs, in the attention group (of `groups`) with most cached tokens: the other groups wait for it.

    Requests are evenly advanced, so a group's cache is about normal; the number of requests is the same everywhere (balanced routers).
    """
    mean = scenario.isl + scenario.osl / 2
    deviation = scenario.osl / sqrt(12) / sqrt(max(1.0, batch))
    return StepBatch(decodes=batch, context=mean + deviation * largest_of(groups), queries=1 + scenario.draft_tokens, usual=mean)


class StepTable:
    """Times of the steps of a run in microseconds, interpolated over requests (from one power of two to the next) and over tokens of prompts.

    A point is computed when it is first asked for, so a time depends on the number of requests alone, not on how many fit.
    """

    def __init__(self, replica: Replica, engine: Engine, scenario: Scenario) -> None:
        engine = engine.beside(replica.layout.dp)
        replica = engine.runs(replica)
        self.replica, self.engine, self.groups, self.stages, self.scenario = replica, engine, replica.layout.dp, replica.layout.pp, scenario
        least = min(256.0, scenario.isl)
        self.tokens: list[float] = np.unique(np.geomspace(least, max(least, engine.step_tokens), PROMPT_SIZES)).tolist()
        lengths = scenario.isl * (1 + sqrt(3 * scenario.spread) * np.linspace(-0.9, 0.9, 10))  # uniform
        self.past = float(np.mean(lengths * np.maximum(0.0, lengths - engine.step_tokens))) / 2 / scenario.isl
        self.seen = float(np.mean(lengths**2)) / 2 / scenario.isl
        alone = [StepBatch(prompts=n, seen=self.seen, past=self.past) for n in self.tokens]
        self.kernels = step_time(replica, alone[0], 1.0).kernels
        self.everywhere = [self._device(batch, max(1.0, batch.prompts / scenario.isl)) for batch in alone]
        """Every group has so many tokens of prompts."""
        one = [self._device(replace(batch, mean=batch.prompts / self.groups), 1.0) for batch in alone] if self.groups > 1 else None
        self.somewhere = one or self.everywhere
        """One group has them."""
        self._part = replica.stage_part
        self._points: dict[tuple[str, int], float] = {}

    def _device(self, batch: StepBatch, prompts_ended: float = 0.0) -> float:
        """GPU time of a step with the draft tokens behind it."""
        return step_time(self.replica, batch, prompts_ended, self.scenario.draft_tokens).device

    def decode_at(self, size: int) -> float:
        """GPU time of a step of `size` requests of a group."""
        return self._device(decode_batch(self.scenario, float(size), self.groups))

    def extra_at(self, size: int, somewhere: bool = False) -> float:
        """What first tokens of a prompt of every group, or of one, add to a step of `size` requests of a group: weights are read once for both."""
        requests, tokens = StepBatch(decodes=float(size), context=self.scenario.isl), self.tokens[0]
        mean = size + tokens / self.groups if somewhere else None
        both = replace(requests, prompts=tokens, seen=self.seen, past=self.past, mean=mean)
        return max(0.0, self._device(both) - self._device(requests))

    def _between(self, name: str, at: Callable[[int], float], requests: float) -> float:
        """`at` of `requests` requests of the replica, on the line between the powers of two around them."""
        size = max(1.0, requests / self.groups / self.stages)
        low = 1 << int(size).bit_length() - 1
        for point in (low, 2 * low):
            if (name, point) not in self._points:
                self._points[name, point] = at(point)
        first, second = self._points[name, low], self._points[name, 2 * low]
        return first + (size / low - 1) * (second - first)

    def _prompts(self, tokens: float, share: float) -> float:
        """GPU time of a step with `tokens` tokens of prompts, on the line between the sizes around them."""
        high = min(bisect_right(self.tokens, tokens), len(self.tokens) - 1)
        low = max(0, high - 1) if tokens < self.tokens[high] else high
        first, second = (self.somewhere[i] + (self.everywhere[i] - self.somewhere[i]) * share for i in (low, high))
        near = self.tokens[low]
        return first if low == high else (second - first) / (self.tokens[high] - near) * (tokens - near) + first

    def _decode(self, requests: float) -> float:
        return self._between("decode", self.decode_at, requests)

    def _stage_step(self, device: float, requests: float, kernels: int = 0, tokens: float = 0.0) -> float:
        """A step of `device` microseconds in the largest of the stages, which work on other requests at the same time."""
        return self.engine.step_us(self.replica, device * self._part, requests / self.groups / self.stages, ceil(kernels * self._part), tokens)

    def decode_us(self, requests: float) -> float:
        """A token of each of `requests` decoding requests of the replica: every stage in turn works on its part of the requests."""
        return self.stages * self._stage_step(self._decode(requests), requests)

    def prompts_us(self, tokens: float, busiest: float, requests: float = 0.0) -> float:
        """A step with `tokens` tokens of prompts, `busiest` of them in one group, and `requests` decoding requests of the replica. With stages it
        takes the step of one stage, and beside decoding requests the steps of the other stages without prompts; prompts are through after `stages`
        steps with prompts."""
        even = min(1.0, tokens / (self.groups * busiest))
        share = (even - 1 / self.groups) / max(1e-9, 1 - 1 / self.groups)
        device = self._prompts(busiest, share) * max(1.0, busiest / self.tokens[-1])
        if requests:
            decode = self._decode(requests)
            first = self._between("extra", self.extra_at, requests)
            if self.groups > 1:
                alone = self._between("extra somewhere", partial(self.extra_at, somewhere=True), requests)
                first = alone + (first - alone) * share
            mixed = self._stage_step(decode + first + device - self._prompts(0.0, share), requests, self.kernels, tokens)
            return mixed + (self.stages - 1) * self._stage_step(decode, requests)
        return self._stage_step(device, 0.0, self.kernels, tokens)
