"""Cost of a layout: bounds over columns of candidates, and the closed form of one candidate with its own split of layers and its memory.

Bounds never exceed the closed form: the largest stage takes at least the mean of all stages, and no piece runs above the peak.
"""

from collections.abc import Mapping
from dataclasses import astuple, replace
from functools import lru_cache

import numpy as np

from dysharp.base import F64, Amounts, AnyMapping, ByName, Numbers, frozen
from dysharp.costs import Machine
from dysharp.model import CORE, FLASH_BACKWARD, Chunk, Layout, chunks_of, flops_of, recipe_for
from dysharp.model.state import BF16, RankParameters, Recipe, rank_parameters, recipe_of
from dysharp.planning.layers import Pieces, chosen_of, pieces_of
from dysharp.planning.memory import held_by_rank, layer_bytes, rank_memory
from dysharp.planning.schedules import V_SHAPED, peaks, ramp_of, ranks_of, work_of
from dysharp.planning.space import Column, Space, Task, is_one
from dysharp.planning.split import best_split, pace, slots, stage_text, v_split
from dysharp.specs import Cluster, WholeModel
from dysharp.training import CAP, ELEMENT, RESERVED, BlockTimes, EpTimes, PassCost, Saving, TrainingRecipe, WireTimes, beyond, peak_flops_per_us, send
from dysharp.training.costs import beside_pass, exchanged_us, late_sends, n_buckets, update_us

SUSTAINED = 0.61
"""Part of the peak that GEMMs keep on a cluster without a packaged GPU: half of 313 TFLOPS, at which the digest of Pangu Ultra's layer was
derived, over 256 TFLOPS, the peak that its sibling paper states."""
GRAIN = 4
"""Parts of a layer in which splits count, so that layouts of like pieces share them."""
WIDE = "wide"
"""Among the values of a candidate: all linears are in BF16."""


def machine_of(cluster: Cluster) -> Machine:
    """The machine of a plan. Without a packaged GPU, GEMMs keep `SUSTAINED` of the peak."""
    if cluster.gpu:
        return Machine(cluster)
    rates = {name: round(getattr(cluster, name) * SUSTAINED) for name in ("bf16_flops_per_us", "fp8_flops_per_us")}
    return Machine(replace(cluster, **rates))


@frozen
class Costed:
    """A candidate by closed forms. `parts`: microseconds of the step by name; they add up to `step_us`."""

    number: int
    layout: Layout
    values: ByName
    step_us: float
    parts: Amounts
    memory: tuple[float, ...]
    """Reserved bytes of every pipeline rank."""
    in_flight: int
    """Micro-batches of chunks that pipeline rank 0 holds at most."""

    @property
    def peak_bytes(self) -> float:
        """Of the fullest rank."""
        return max(self.memory)

    @property
    def limit(self) -> str:
        """The part that takes longest besides computing."""
        return max((name for name in self.parts if name != "computing"), key=lambda name: self.parts[name])


RowKey = tuple[int, int, int, int, str]


def row_key(values: AnyMapping) -> RowKey:
    """What a Row of routed experts depends on: EP degrees, tensor and context degree over the micro-batch, system."""
    return values["ep"], values["etp"], values["tp"] * values["cp"], values["micro_batch"], values["system"]


class Coster:
    """Costs of one task on one machine."""

    def __init__(
        self, task: Task, machine: Machine, space: Space, rows: Mapping[RowKey, EpTimes] | None = None, block: BlockTimes | None = None
    ) -> None:
        """`rows`: Rows of the routed experts that take the place of closed forms. `block`: the MoE block of one layout as merged Programs."""
        self.task, self.machine, self.space, self.rows, self.block = task, machine, space, rows or {}, block
        formats = task.training_recipe.formats
        self.recipe: Recipe = recipe_for(formats) if formats else recipe_of(task.precision)
        self.capacity = CAP * machine.cluster.hbm_bytes
        model = task.model
        flops = flops_of(model, task.sequence)
        core = flops.forward[CORE]
        self.forward = flops.forward_total
        self.executed = 3 * (self.forward - core) + (1 + FLASH_BACKWARD) * core
        self.peak = max(float(machine.cluster.bf16_flops_per_us), peak_flops_per_us(machine.cluster, task.training_recipe.products(model)))
        self.dense, self.experts = astuple(rank_parameters(model, Layout(), [Chunk(0, model.n_layers, True, model.mtp, True)]))
        *_, self.wide = task.training_recipe.choices(model.layer is not None, True)
        """The recipe with every linear in BF16 that may stay so."""

    def _batches(self, c: Mapping[str, Column]) -> tuple[Column, Column]:
        dp = np.maximum(self.task.gpus // (c["tp"] * c["cp"] * c["pp"]), 1)
        return dp, np.maximum(self.task.batch // (dp * c["micro_batch"]), 1)

    def state_bound(self, c: Mapping[str, Column]) -> F64:
        """Bytes of weights, gradients and optimizer that the fullest rank has at least: the mean, with everything cut that can be."""
        dp, _ = self._batches(c)
        stage = c["tp"] * c["cp"] * dp
        dense, experts = self.dense / (c["pp"] * c["tp"]), self.experts / (c["pp"] * c["ep"] * c["etp"])
        ranks, expert_ranks = dp * c["cp"], np.maximum(stage // (c["ep"] * c["etp"]), 1)
        part, expert_part = (np.where(is_one(self.space.weights, c["weights"], "sharded"), n, 1) for n in (ranks, expert_ranks))
        shard, expert_shard = (ranks, expert_ranks) if self.recipe.sharded else (part, expert_part)
        held = (BF16 + self.recipe.gradients) * (dense / part + experts / expert_part)
        return np.asarray(RESERVED * (held + self.recipe.optimizer * (dense / shard + experts / expert_shard)))

    def rough_activations(self, c: Mapping[str, Column]) -> F64:
        """Bytes of mean layers in flight on the first rank: an estimate, no bound."""
        model = self.task.model
        per = np.zeros(len(self.space.recompute))
        for at, modules in enumerate(self.space.recompute):
            per[at] = layer_bytes(model, Layout(), model.layer is not None, Saving(modules), self.recipe)[0]
        tokens = c["micro_batch"] * self.task.sequence / (c["cp"] * c["tp"])
        flying = np.where(c["vpp"] == 1, c["pp"], 2 * c["pp"] - 1 + (c["vpp"] - 1) * c["pp"]) / c["vpp"]
        return np.asarray(tokens * per[c["recompute"]] * model.n_layers / c["pp"] * flying)

    def compute_bound(self, c: Mapping[str, Column]) -> F64:
        """Microseconds of a step at the peak with even stages, and the bubble of 1F1B."""
        _, m = self._batches(c)
        again = np.asarray(["full" in one for one in self.space.recompute])[c["recompute"]] * self.forward
        tokens = c["micro_batch"] * self.task.sequence / (c["cp"] * c["tp"])
        stage = tokens * (self.executed + again) / self.peak / c["pp"]
        loop = is_one(self.space.schedule, c["schedule"], "1f1b")
        return np.asarray(stage * (m + np.where(loop, (c["pp"] - 1) / c["vpp"], 0)))

    def balanced_bound(self, c: Mapping[str, Column], numbers: Column) -> F64:
        """A rough closed form: even stages, cells and bubble alone, no copies of stages; pieces are computed once for every different key."""
        names = ("tp", "cp", "ep", "etp", "micro_batch", "recompute", "overlap", "system", "weights", "offload")
        stages = np.where(is_one(self.space.weights, c["weights"], "sharded"), c["pp"], 0)  # whose replicas share weights
        keys = np.stack([*(c[name] for name in names), stages], axis=1)
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        sums = [self._sums(self.space.candidate(int(numbers[at]))) for at in first]
        forward, backward, weights, steady = np.asarray(sums).reshape(-1, 4)[back.reshape(-1)].T
        _, m = self._batches(c)
        loop = is_one(self.space.schedule, c["schedule"], "1f1b")
        bubble = np.where(loop, forward + backward + weights, 0) * (c["pp"] - 1) / c["pp"] / c["vpp"]
        return np.asarray(m * steady / c["pp"] + bubble)

    def pieces(self, values: AnyMapping) -> Pieces:
        """Costs of the pieces of a candidate."""
        return pieces_of(*self._asked(values), values["offload"], self._recipe(values), self.block)

    def training_recipe(self, values: AnyMapping) -> TrainingRecipe:
        """The training recipe of the last layer of a candidate: which linears stay in BF16."""
        return chosen_of(*self._asked(values))

    def _recipe(self, values: AnyMapping) -> Recipe:
        """The recipe of a candidate: linears that stay in BF16 have no copies."""
        formats = self.training_recipe(values).formats if self.recipe.fp8 else None
        return recipe_for(formats) if formats else self.recipe

    def _asked(self, values: AnyMapping) -> tuple[WholeModel, Machine, Layout, int, str, str, TrainingRecipe, float, EpTimes | None]:
        layout = Layout(**{name: values[name] for name in ("tp", "cp", "ep", "etp", "micro_batch")}, dp=values["ep"] * values["etp"])
        if values["weights"] == "sharded":  # the ranks that share them set the time of their traffic
            whole = self.task.layout(values)
            layout = replace(layout, dp=whole.dp, fsdp=whole.fsdp)
        own = self.wide if values.get(WIDE) else self.task.training_recipe
        return (
            self.task.model, self.machine, layout, self.task.sequence, values["system"], values["overlap"],
            replace(own, recompute=values["recompute"]), self.task.hottest(values["ep"]), self.rows.get(row_key(values)),
        )  # fmt: skip

    def letters(self) -> str:
        """The model as a layout string without chunks; dense layers are "d"."""
        model = self.task.model
        return "E" + "d" * model.dense_layers + "t" * model.moe_layers + "m" * model.mtp + "L"

    def _sums(self, values: AnyMapping) -> tuple[float, ...]:
        pieces = self.pieces(values)
        each = {letter: pieces.one(letter) for letter in pieces.costs}
        return tuple(sum(each[letter][i] for letter in self.letters()) for i in range(4))

    def cost(self, number_of: int) -> Costed:
        """The closed form of one candidate, with the best split of its layers."""
        return self.cost_of(self.space.candidate(number_of), number_of)

    def cost_of(self, values: ByName, number_of: int = -1, stages: str = "") -> Costed:
        """The same of a candidate by its values, with the best split or `stages`: the faster that fits of two.

        Each layer keeps the linears in BF16 that FP8 slows, or (`WIDE`) all.

        FP8 has more launches in a forward pass and its copies in memory: what is faster in each layer may be slower in a pipeline, or not fit.
        """
        ways = [values] if WIDE in values or self.wide == self.task.training_recipe else [values, values | {WIDE: True}]
        return min((self._cost_of(one, number_of, stages) for one in ways), key=lambda one: (max(one.peak_bytes, self.capacity), one.step_us))

    def _cost_of(self, values: ByName, number_of: int, stages: str) -> Costed:
        pieces, letters = self.pieces(values), self.letters()
        each = {letter: pieces.one(letter) for letter in pieces.costs}
        layout = self.task.layout(values, stages)
        if stages:
            ends = _ends(self.task.model, layout)
        else:
            layer = each["t" if "t" in each else "d"][3]
            weights = tuple(round(GRAIN * each[letter][3] / layer) / GRAIN for letter in letters)
            ends = _split(weights, values["schedule"], layout, self.task.rules.chunks)
            layout = self.task.layout(values, stage_text(letters.replace("d", "t"), ends))
        runs = [letters[a:b] for a, b in zip((0, *ends[:-1]), ends, strict=True)]
        sent = self._sent(layout)
        cells = np.asarray([_cell(run, each, pieces, sent) for run in runs])
        parts = self._parts(values, layout, cells, pieces, runs)
        memory = rank_memory(self.task, values, layout, self._recipe(values))
        held = int(peaks(values["schedule"], layout, 0, values["overlap"] == "pair").sum(axis=1).max())
        return Costed(number_of, layout, dict(values), sum(parts.values()), parts, memory, held)

    def _sent(self, layout: Layout) -> WireTimes:
        """What one send holds."""
        rows = ELEMENT * self.task.model.between * layout.tokens(self.task.sequence) / layout.tp
        return send(self.machine, rows, layout) if layout.pp > 1 else WireTimes()

    def chunks_us(self, one: Costed) -> list[tuple[float, float, float]]:
        """(forward, backward, weights) of every chunk of a layout in microseconds, EP communication hidden where it overlaps."""
        pieces, letters = self.pieces(one.values), self.letters()
        ends = _ends(self.task.model, one.layout)
        runs = [letters[a:b] for a, b in zip((0, *ends[:-1]), ends, strict=True)]
        each = {letter: (c.forward, c.backward, c.weights, 0.0) for letter, c in pieces.merged.items()}
        cells = [_cell(run, each, pieces, self._sent(one.layout)) for run in runs]
        return [(forward, backward, weights) for forward, backward, weights, _ in cells]

    def _parts(self, values: AnyMapping, layout: Layout, cells: F64, pieces: Pieces, runs: list[str]) -> Amounts:
        """Microseconds of a step by part. `cells`: [chunks, (forward, backward, weights, steady)]."""
        m, p, v, schedule = layout.micro_batches, layout.pp, layout.vpp, values["schedule"]
        ranks = work_of(schedule, layout, cells[:, 3])
        slowest, mean = int(np.argmax(ranks)), float(ranks.mean())
        f, b, w = (float(cells[:, i].sum()) / p for i in range(3))
        ramp = ramp_of(schedule, p, v, (f, b, w, mean), m)
        steady = pace(cells[:, 3].reshape(v, p)) if schedule == "1f1b" else float(ranks[slowest])
        sent = self._sent(layout)
        latency = self.machine.latency(layout)
        hop = max(sent.near, sent.far) + latency if p > 1 else 0.0
        places = ranks_of(schedule, layout)
        own = "".join(runs[at] for at in places[slowest])
        part = mean / float(ranks[slowest]) / sum(len(one) for one in places) * layout.chunks
        exposed, host, late, shared = (part * sum(each) for each in zip(*map(pieces.waits, own), strict=True))
        widest, copies = RankParameters(*max(held_by_rank(self.task.model, layout, schedule), key=sum)), 1 + (schedule == "dualpipe")
        letters = "".join(runs)
        ways = [(us / p, 1 / p * wires) for us, wires in zip(pieces.passes(letters), pieces.wires(letters), strict=True)]
        return {
            "computing": m * (mean - exposed - host - late - shared),
            "launches": m * host,
            "EP communication": m * exposed,
            "collectives": m * shared,
            "uneven stages": m * (steady - mean),
            "bubble": ramp.ramp + m * steady * (ramp.slope - 1),
            "sends": hop * (2 * (p - 1) + (2 * m if v == 1 else 0)),  # 1F1B waits for its sends, interleaved ones run beside (Megatron-Bridge)
            "gradients and parameters": m * late + self._exchange(layout, widest, ways, copies),
            "optimizer": update_us(self.machine, layout, widest, copies, self.task.training_recipe, self.recipe),
        }

    def _exchange(self, layout: Layout, held: RankParameters, ways: list[tuple[float, WireTimes]], copies: int) -> float:
        """Gradients and parameters that nothing hides: the last bucket, and the time beyond the passes of one micro-batch, whose wires they share.

        `ways`: time and wires of a forward and of a backward pass.
        """
        out, own = 0.0, self.task.training_recipe
        for element, (pass_us, others) in zip(self.recipe.exchanged, reversed(ways), strict=True):
            if layout.fsdp == 1:  # else every micro-batch brings them
                alone, wires = exchanged_us(self.machine, layout, held, copies, element)
                out += max(alone / n_buckets(layout, held, own), beside_pass(alone, wires, others, pass_us) - pass_us)
        return out


def _cell(run: str, each: Mapping[str, tuple[float, ...]], pieces: Pieces, sent: WireTimes) -> list[float]:
    """(forward, backward, weights, steady) of a chunk of pieces, with sends for which its wires have no time."""
    forward, backward, weights, steady = (sum(each[letter][i] for letter in run) for i in range(4))
    wires = pieces.wires(run)
    ahead, behind = late_sends(PassCost(forward, backward, weights, forward_wires=wires[0], backward_wires=wires[1]), sent)
    alone = forward + ahead + backward + behind + weights
    return [forward + ahead, backward + behind, weights, min(steady + beyond(steady, wires[0] + wires[1], 2 * sent)[0], alone)]


def _split(weights: tuple[float, ...], schedule: str, layout: Layout, rule: str) -> Numbers:
    """The best ends of chunks for a schedule, as a framework splits."""
    if rule != "any":  # equal chunks are slots without no-op layers
        return slots(weights, layout.pp, layout.vpp)
    if schedule in V_SHAPED:
        return v_split(weights, layout.pp)
    if schedule == "dualpipe":
        return v_split(weights, layout.pp // 2)
    return best_split(weights, layout.pp, layout.vpp)


@lru_cache(maxsize=1 << 12)
def _ends(model: WholeModel, layout: Layout) -> Numbers:
    """Ends of the chunks of a layout string in letters."""
    ends, at = [], 0
    for chunk in chunks_of(model, layout):
        at += chunk.embedding + chunk.n_layers + chunk.mtp + bool(chunk.head)
        ends.append(at)
    return tuple(ends)
