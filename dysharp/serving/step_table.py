"""`StepTable`: times of the steps of one replica under one load, so that a loop costs few steps."""

from dataclasses import replace
from math import ceil, sqrt

import numpy as np

from dysharp.serving.balance import largest_of
from dysharp.serving.engine import Engine
from dysharp.serving.step import draft_us, step_time
from dysharp.serving.work import Batch, Load, Replica

DECODE_SIZES = 6
PROMPT_SIZES = 4


def decode_batch(load: Load, batch: float, groups: int = 1) -> Batch:
    """`batch` requests somewhere in their answers, in the attention group (of `groups`) with most cached tokens: the other groups wait for it.

    Answers are evenly advanced, so a group's cache is about normal; the number of requests is the same everywhere (balanced routers).
    """
    mean = load.prompt + load.answer / 2
    deviation = load.answer / sqrt(12) / sqrt(max(1.0, batch))
    return Batch(decodes=batch, context=mean + deviation * largest_of(groups), queries=1 + load.drafts, usual=mean)


class StepTable:
    """Times of the steps of a run in microseconds, interpolated over requests and over tokens of prompts."""

    def __init__(self, replica: Replica, engine: Engine, load: Load, top: float) -> None:
        """`top`: requests of an attention group up to which the table reaches."""
        engine = engine.beside(replica.layout.dp)
        replica = replace(replica, reducers=engine.reducers)
        self.replica, self.engine, self.groups, self.stages = replica, engine, replica.layout.dp, replica.layout.pp
        self.sizes = np.unique(np.geomspace(1.0, max(1.0, top / self.stages), DECODE_SIZES))
        batches = [decode_batch(load, float(size), self.groups) for size in self.sizes]
        self.decodes = np.array([step_time(replica, one).device + load.drafts * draft_us(replica, one) for one in batches])
        least = min(256.0, load.prompt)
        self.tokens = np.unique(np.geomspace(least, max(least, min(engine.step_tokens, top * load.prompt)), PROMPT_SIZES))
        seen, past = load.prompt / 2, max(0.0, load.prompt - engine.step_tokens) / 2
        alone = [Batch(prompts=float(n), seen=seen, past=past) for n in self.tokens]
        steps = [step_time(replica, batch, max(1.0, batch.prompts / load.prompt)) for batch in alone]
        self.kernels = steps[0].kernels
        self.everywhere = np.array([step.device for step in steps])
        """Every group has so many tokens of prompts."""
        one = [step_time(replica, replace(batch, mean=batch.prompts / self.groups), 1.0).device for batch in alone] if self.groups > 1 else None
        self.somewhere = self.everywhere if one is None else np.array(one)
        """One group has them."""
        # Weights are read once for requests and prompts of one step.
        requests = Batch(decodes=float(self.sizes[-1]), context=load.prompt)
        both = step_time(replica, replace(requests, prompts=least, seen=seen, past=past))
        self.first_extra = max(0.0, both.device - step_time(replica, requests).device)

    def _decode(self, requests: float) -> float:
        return float(np.interp(requests / self.groups / self.stages, self.sizes, self.decodes))

    def _turn(self, device: float, requests: float, kernels: int = 0) -> float:
        """A step of `device` microseconds in the largest of the stages, which work on other requests at the same time."""
        part = self.replica.stage_part
        return self.engine.step_us(self.replica, device * part, requests / self.groups / self.stages, ceil(kernels * part))

    def decode_us(self, requests: float) -> float:
        """A token of each of `requests` decoding requests of the replica: a turn of every stage, each with its part of the requests."""
        return self.stages * self._turn(self._decode(requests), requests)

    def prompts_us(self, tokens: float, busiest: float, requests: float = 0.0) -> float:
        """A step with `tokens` tokens of prompts, `busiest` of them in one group, and `requests` decoding requests of the replica. With stages it
        takes the turn of one stage, and beside decoding requests the turns of the other stages without prompts; prompts are through after `stages`
        turns with prompts."""
        last = float(self.tokens[-1])
        even = min(1.0, tokens / (self.groups * busiest))
        table = self.somewhere + (self.everywhere - self.somewhere) * (even - 1 / self.groups) / max(1e-9, 1 - 1 / self.groups)
        device = float(np.interp(busiest, self.tokens, table)) * max(1.0, busiest / last)
        if requests:
            decode = self._decode(requests)
            mixed = self._turn(decode + self.first_extra + device - float(table[0]), requests, self.kernels)
            return mixed + (self.stages - 1) * self._turn(decode, requests)
        return self._turn(device, 0.0, self.kernels)
