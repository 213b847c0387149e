"""`emulate`: one MoE layer on the functional machine, compared with its references."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from dysharp.base import Array, ByName, ConfigError, Tally, Texts, check_word, f64, facts, frozen
from dysharp.functional.experts import GatedExperts, IntegerExperts
from dysharp.functional.faults import ROUTING, routing_cases, why_not
from dysharp.functional.layer import Tensors
from dysharp.functional.machine import Machine, Pass
from dysharp.functional.numbers import Number, number
from dysharp.functional.reference import dense_backward, dense_forward, recorded_reference
from dysharp.functional.torch.blocks import BLOCKS as TORCH_BLOCKS
from dysharp.functional.wire import CAST_ERROR, through
from dysharp.systems import get_system
from dysharp.workload import needed_gpus

PLAIN_BLOCKS = {
    "integer": "plain experts on integers: every sum is exact (dtype int32)",
    "gated": "SwiGLU experts in NumPy, gate weights by softmax (float32 or bfloat16)",
}
BLOCKS = {**PLAIN_BLOCKS, **TORCH_BLOCKS}
# Largest error divided by the largest absolute value of the reference (docs/design/0004, Numbers).
BOUNDS = {"int32": 0.0, "float32": 1e-5, "bfloat16": 2.0**-5}


@frozen
class Emulation:
    """Results of one emulated layer.

    Errors are largest absolute differences from the reference, and these divided by the reference's largest absolute
    value. They cover outputs, and with `backward` all gradients. `exact`: results equal the reference that adds in the
    recorded order, bit for bit. `injected`: {kind: times}; `not_injected`: {kind: why it happened 0 times}.
    """

    system: str
    block: str
    gpus: int
    tokens_per_gpu: int
    dtype: str
    backward: bool
    path: str
    order: str
    max_abs_error: float
    max_rel_error: float
    bound: float
    exact: bool
    reference: str
    packets: Tally
    flits: Tally
    tables: dict[str, Tally]
    injected: Tally
    not_injected: dict[str, str]
    dump: Texts = ()
    rows: str = ""
    """Format of the rows of Dispatch, where they are floats of a plain block. "": the payload's own."""
    casts: str = ""
    """What the switch sums and sends, where it converts."""
    rows_error: float = 0.0
    """Root mean square of the output's difference from `reference` of unrounded rows, over that of the output (plain blocks of floats)."""

    @property
    def holds(self) -> bool:
        """Whether the results are exact and the errors stay within their limits."""
        return self.exact and self.max_rel_error <= self.bound

    @property
    def rounding(self) -> list[tuple[str, str]]:
        """What the format of rows costs, as a printed fact."""
        asked = [text for text in (self.rows, self.casts) if text]
        off = f"{', '.join(asked)}: the output is {self.rows_error:.2%} off the dense layer (root mean square)"
        return [("rows out" if self.rows else "sums", off)] if asked else []

    def __str__(self) -> str:
        """Whether the tensors are right, in a few lines."""
        faults = [(f"injected {kind}", f"{n} times" if n else f"0 times: {self.not_injected[kind]}") for kind, n in self.injected.items()]
        layer = f"{self.block}, {self.gpus} GPUs, {self.tokens_per_gpu} tokens per GPU, {self.dtype}, "
        return facts(
            [
                ("layer", layer + ("forward and backward" if self.backward else "forward")),
                ("machine", f"{self.system}, {self.path} path, order {self.order}"),
                ("largest error", f"{self.max_rel_error:.3g} of the largest value (allowed {self.bound:.3g})"),
                ("bits", f"{'equal to' if self.exact else 'NOT equal to'} the sum in the recorded order"),
                *faults,
                *self.rounding,
                ("result", "right" if self.holds else "WRONG"),
            ]
        )

    def __repr__(self) -> str:
        return f"<Emulation of {self.system}: {'right' if self.holds else 'WRONG'}; print() shows more, to_dict() all>"

    def to_dict(self) -> ByName:
        """All fields as plain values for JSON."""
        return asdict(self)


@frozen
class Shape:
    """Sizes of an emulated layer. `experts`: experts of all GPUs."""

    hidden: int
    expert_hidden: int
    experts: int
    topk: int


@dataclass(slots=True)
class _Errors:
    """The largest differences between results and references so far."""

    absolute: float = 0.0
    relative: float = 0.0
    rows: float = 0.0

    def see(self, found: Array, expected: Array) -> None:
        found, expected = f64(found), f64(expected)
        if not found.size:
            return
        worst = np.abs(found - expected).max()
        worst = np.inf if np.isnan(worst) else float(worst)
        self.absolute = max(self.absolute, worst)
        scale = float(np.abs(expected).max())
        self.relative = max(self.relative, worst / scale if scale else (np.inf if worst else 0.0))


def run_emulation(machine: Machine, block: str, shape: Shape, *, tokens: int, dtype: str | None, backward: bool, kinds: Texts) -> Emulation:
    """Run one layer of `block` on `machine`. `kinds`: faults and hard cases to inject. See `dysharp.emulate`."""
    check_word(block, BLOCKS, f"block {block!r}: unknown")
    chosen = number(dtype if dtype is not None else "int32" if block == "integer" else "float32")
    if chosen.is_integer != (block == "integer"):
        raise ConfigError(f"dtype: found {chosen.name} with block {block}, expected int32 for block integer, a float type for other blocks")
    errors = _Errors()
    asked = str(machine.options.get("dispatch", "rows"))
    rounded = asked if block in PLAIN_BLOCKS and not chosen.is_integer and asked != "rows" else ""
    # The formats of the rows that the switch sums and of the sums that it sends. Integers have none but "rows".
    converts = hasattr(get_system(machine.system).options, "sums") and not chosen.is_integer
    words = [str(machine.options.get(name, "rows")) if converts else "rows" for name in ("combine", "sums")]
    if block in PLAIN_BLOCKS:
        what = _run_plain(machine, block, shape, tokens, chosen, backward, kinds, errors, rounded)
    else:
        what = _run_torch(machine, block, shape, tokens, chosen, backward, kinds, errors)
    passes = list(machine.passes.values())
    statistics = [p.statistics for p in passes if p.statistics is not None]
    tables = _tables([s.tables for s in statistics])
    injected = _injected(kinds, passes[0].tensors, _sum_counts([s.injected for s in statistics] + [p.outcome.injected for p in passes]))
    domain_nodes = passes[0].program.domain_nodes or machine.gpus
    return Emulation(
        system=machine.system, block=block, gpus=machine.gpus, tokens_per_gpu=tokens, dtype=chosen.name, backward=backward,
        path="packet" if statistics else "row", order=machine.order, max_abs_error=errors.absolute, max_rel_error=errors.relative,
        bound=BOUNDS[chosen.name] + CAST_ERROR * sum(word != "rows" for word in words), exact=_is_exact(passes), reference=what,
        packets=_sum_counts([s.packets for s in statistics]), flits=_sum_counts([s.flits for s in statistics]), tables=tables, injected=injected,
        not_injected={kind: why_not(kind, machine.system, tables, machine.gpus // domain_nodes) for kind, n in injected.items() if not n},
        dump=tuple(text for s in statistics for text in s.dump), rows=rounded,
        casts="the switch sums {} and sends {}".format(*words) if block in PLAIN_BLOCKS and set(words) != {"rows"} else "", rows_error=errors.rows,
    )  # fmt: skip


def _run_plain(
    machine: Machine, block: str, shape: Shape, tokens: int, n: Number, backward: bool, kinds: Texts, errors: _Errors, rounded: str
) -> str:
    rng = np.random.default_rng([machine.seed, 1])
    family = IntegerExperts if block == "integer" else GatedExperts
    experts = family(shape.experts, shape.hidden, shape.expert_hidden, machine.seed)
    n_tokens = tokens * machine.gpus
    expert = np.argsort(rng.random((n_tokens, shape.experts)), axis=1)[:, : shape.topk]
    expert = routing_cases(expert, kinds, machine.gpus, shape.experts)
    size = (2, n_tokens, shape.hidden)
    x, dy = n.store(rng.integers(-3, 4, size) if n.is_integer else rng.standard_normal(size))
    weight: Array = rng.integers(1, 4, expert.shape) if n.is_integer else rng.dirichlet(np.ones(shape.topk), n_tokens)
    y, context = machine.forward(n.store(through(rounded, x)) if rounded else x, expert, weight, experts)
    forward = machine.passes["forward"].tensors
    errors.see(y, dense_forward(forward))
    if not n.is_integer:
        exact = dense_forward(replace(forward, tokens=x))
        errors.rows = float(np.sqrt(np.mean((y.astype(np.float64) - exact) ** 2) / np.mean(exact**2)))
    if backward:
        dx, gate = machine.backward(context, dy, experts)
        grads = experts.take_grads()
        dense = copy.deepcopy(experts)
        expected_dx, expected_gate = dense_backward(replace(machine.passes["backward"].tensors, experts=dense), forward.tokens)
        errors.see(dx, expected_dx)
        errors.see(gate, expected_gate)
        for name, expected in dense.take_grads().items():
            errors.see(grads[name], expected)
    return "dense layer: each expert computes all its tokens at once, without rounding, sums in " + ("int64" if n.is_integer else "float64")


def _run_torch(machine: Machine, block: str, shape: Shape, tokens: int, n: Number, backward: bool, kinds: Texts, errors: _Errors) -> str:
    drawn = [kind for kind in kinds if kind in ROUTING]
    if drawn:
        raise ConfigError(f"inject {drawn[0]}: found block {block} whose router chooses, expected block integer or gated")
    from dysharp.functional.torch import make_block, wrap

    module = make_block(
        block, hidden=shape.hidden, expert_hidden=shape.expert_hidden, n_experts=shape.experts, topk=shape.topk, dtype=n.name, seed=machine.seed
    )
    import torch

    generator = torch.Generator().manual_seed(machine.seed + 1)
    size = (1, tokens * machine.gpus, shape.hidden)
    x, r = (torch.randn(size, generator=generator).to(next(module.parameters()).dtype) for _ in range(2))
    results = []
    for layer in (wrap(module, machine), module):
        given = x.clone().requires_grad_(backward)
        with torch.set_grad_enabled(backward):
            y = layer(given)
        y = y[0] if isinstance(y, tuple) else y
        result = {"output": y.detach()}
        if backward:
            module.zero_grad()
            (y * r).sum().backward()
            result["input"] = given.grad
            result |= {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        results.append(result)
    found, expected = results
    for name in expected:
        errors.see(found[name].float().numpy(), expected[name].float().numpy())
    return f"the Hugging Face block itself ({type(module).__name__}, eager, {n.name})"


def _is_exact(passes: list[Pass]) -> bool:
    """Whether outputs and gate gradients equal the reference that adds in the recorded order, bit for bit."""
    for p in passes:
        tensors = replace(p.tensors, experts=copy.deepcopy(p.tensors.experts)) if p.tensors.saved is not None else p.tensors
        reference = recorded_reference(tensors, p.outcome.record, forward=passes[0].outcome.record)
        if not _same_bits(p.outcome.out, reference.out):
            return False
        if reference.gate_grad is not None and p.outcome.gate_grad is not None and not _same_bits(p.outcome.gate_grad, reference.gate_grad):
            return False
    return True


def _same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _sum_counts(counts: Sequence[Mapping[str, int]]) -> Tally:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total)


def _tables(passes: list[dict[str, Counter[str]]]) -> dict[str, Tally]:
    """Counts of all passes. Counts are added, sizes and peaks are not."""
    total: dict[str, Tally] = {}
    for tables in passes:
        for name, counts in tables.items():
            into = total.setdefault(name, {})
            for key, value in counts.items():
                into[key] = max(into.get(key, 0), value) if key in ("entries", "peak") else into.get(key, 0) + value
    return total


def _injected(kinds: Texts, t: Tensors, counted: Tally) -> Tally:
    """{kind: number of times that the injected fault or hard case happened}."""
    r = t.routing
    needs = needed_gpus(r)
    source = np.arange(r.n_tokens) // r.tokens_per_gpu
    chosen = (r.slot >= 0).sum(axis=1)
    of_routing = {
        "empty": int((chosen == 0).sum()),
        "local": int(((needs.sum(axis=1) == 1) & (r.slot.max(axis=1) // r.placement.slots_per_gpu == source) & (chosen > 0)).sum()),
        "one-gpu": int(((needs.sum(axis=1) == 1) & (chosen > 1)).sum()),
        "idle-expert": int((np.bincount(r.expert[r.expert >= 0], minlength=r.n_experts) == 0).sum()),
        "drop": int((r.slot < 0).sum()),
    }
    return {kind: of_routing[kind] if kind in of_routing else counted.get(kind, 0) for kind in kinds}
