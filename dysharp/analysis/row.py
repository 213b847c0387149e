"""`Row`: one simulated point, exactly the fields of `dysharp run --json`."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

from dysharp.analysis.attribution import critical_path
from dysharp.analysis.bound import collective_bound_us, pool_busy_ps, program_bound, workload_bound_us
from dysharp.analysis.count import group_transfers, sums_that_passed, traffic_bytes, wire_table
from dysharp.analysis.phases import LastGpu, utilization
from dysharp.analysis.surroundings import Surroundings
from dysharp.analysis.waiting import waiting_us
from dysharp.base import MODEL_VERSION, Amounts, AnyMapping, Bools, ByName, Tally, Texts, frozen, ps_to_us
from dysharp.base.text import facts, html_table
from dysharp.isa.framing import AS_IS
from dysharp.program import Kind, Program, Skew, Trace
from dysharp.specs import Cluster, Model
from dysharp.systems import is_real
from dysharp.systems.building.experts import AROUND
from dysharp.workload import Routing, Work

LEFT_OUT: ByName = {"workload": "", "blocks": {}, "dropped_rows": 0, "warnings": (), "window": {}, "surroundings_us": {}, "skew": {}}
"""Fields of a Row that its JSON has only where they differ from these values."""
DIRECTIONS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}
SURROUNDINGS = "surroundings_us"
"""The key of `Row.attribution` for surroundings on an hw cluster."""


@frozen
class RunInputs:
    """The inputs of one pass, as they appear in its Row.

    `work`: what the GPUs are asked for. `model`: of a layer; None = a collective. `layer`: layer of a recording, or draw of a distribution; None =
    the default draw. `direction`: "fwd" or "bwd". `free_links`: links cost nothing by declaration ("ideal").
    """

    system: str
    model: Model | None
    cluster: Cluster
    work: Routing | Work
    layer: int | None
    direction: str
    fidelity: str
    seed: int
    options: ByName
    free_links: bool = False
    skew: Skew | None = None

    @property
    def form(self) -> str:
        """ "real" or "paper"."""
        return form_of(self.cluster, self.options)


@frozen
class WallTimes:
    """Wall seconds of each step. `plan` includes the verifier and lowering. `total` excludes `compile_s`."""

    routing: float
    plan: float
    engine: float
    analysis: float
    total: float


@frozen
class HostCosts:
    """Costs of the run on the computer that simulated. `compile_s` in seconds, `peak_rss_mb` in MB (1e6 bytes)."""

    wall_s: WallTimes
    compile_s: float
    peak_rss_mb: float


@frozen
class Row:
    """One system on one workload: the fields of `dysharp run --json`, and `header`.

    Times are in microseconds, sizes in bytes, shares between 0 and 1. "The last GPU" is the GPU that finishes last.
    On `hw-*` clusters a layer also has surroundings (`analysis.surroundings`): in the Program of a real form of several kernels, else charged
    after the run. `time_us`, `attribution` and `eager_us` contain what is charged; all other times are times of the Program.
    With `window`, all other fields describe the leading tokens. Direction "both": see `analysis.both_passes`.

    `system`             name of the system
    `form`               "paper" or "real"
    `workload`           words for a collective or a sub-layer; "" = a MoE layer
    `model`              name of the model; "" = a collective, which has no tokens, top-k and routing either
    `cluster`            name of the cluster
    `gpus`               GPUs in use
    `tokens_per_gpu`     tokens of each GPU; with `window`, the leading tokens
    `topk`               experts per token
    `layer`              layer of a recording, or draw of a distribution; None = the default draw
    `routing`            description of the routing
    `direction`          "fwd", "bwd" or "both"
    `fidelity`           "burst" or "packet"
    `seed`               seed of everything that is drawn
    `options`            {option: value}, all options of the system
    `time_us`            time of the layer, as in a CUDA graph: the Program and its surroundings on the GPU
    `phases_us`          {operator: {start, end, busy}} on the last GPU; phases overlap
    `exposed_comm_us`    time of the last GPU with a transfer in flight and no GEMM running
    `traffic_bytes`      payload of all GPUs, {up, down: {dispatch, combine, other}}; over several domains also nic out, nic in
    `wire_flits`         flits of all GPUs {up, down}: payload, headers, acknowledgements
    `utilization`        {up, down, sm}: mean over GPUs; {up_max, down_max, sm_max}: maximum over GPUs; also of nic out, nic in
    `bound_us`           lower bound for this Program: the busiest resource (`analysis.bound`)
    `bound_resource`     name of that resource
    `bound_terms`        summands of `bound_us`
    `workload_bound_us`  lower bound for every system on this workload
    `attribution`        critical path by cause {link_up_us, link_down_us, sm_us, latency_us, window_us, host_us}, and
                         surroundings_us on hw clusters, start_us with late ranks, nic_out_us, nic_in_us and
                         nic_latency_us over several domains (spine_* where the spine is oversubscribed);
                         sums to `time_us`
    `path_us` critical path by operator (keys of `phases_us`); sums to `program_us`. In a backward pass the gradients of a GEMM count as the GEMM
                         itself
    `stalls`             waits on the last GPU {window_us, link_us, sm_us}
    `waiting_us`         {operator: {span, moving, resource, own, peers}}, each a list by rank: the operator's span on the
                         rank and its parts, which sum to the span (`analysis.waiting`)
    `n_ops`              ops of the Program
    `n_events`           events of the engine
    `wall_s`             wall seconds {routing, plan, engine, analysis, total} (`WallTimes`)
    `compile_s`          wall seconds of importing and compiling numba kernels
    `peak_rss_mb`        largest resident memory of the process, MB (1e6 bytes); 0 = not known
    `digest`             digest of the Trace
    `model_version`      version of the simulated numbers (`MODEL_VERSION`)
    `blocks`             counts of the fabric's blocks at packet level (`engine.packet.program`), of the forward pass
                         in "both"; empty at burst level
    `dropped_rows`       (token, expert) rows of the routing that the system drops by its capacity
    `warnings`           parts of the prediction outside the validated range, on hw clusters; rows that the system drops;
                         hardware that it assumes between domains
    `window`             estimate for the whole layer {tokens, of_tokens, time_us, us_per_token, half_window_time_us, apart, low_us,
                         high_us, path_us, surroundings_us} (`runs.known`); nine of ten layers are from `low_us` to `high_us`, `apart` of the
                         time to both sides; `half_window_time_us`: from half the tokens; empty when all tokens were run
    `surroundings_us`    {permute_us, activation_us, cast_us, launch_us, host_us} on hw clusters where
                         GEMMs run, else empty
    `skew`               {start_us, slow}: start time and factor of GEMM times of each rank; empty when all ranks are
                         alike. Times count from time zero, at which the first rank starts. In "both", each pass
    `header`             lines about inputs and assumptions behind the numbers; not in JSON
    """

    system: str
    form: str
    workload: str
    model: str
    cluster: str
    gpus: int
    tokens_per_gpu: int
    topk: int
    layer: int | None
    routing: str
    direction: str
    fidelity: str
    seed: int
    options: ByName
    time_us: float
    phases_us: dict[str, Amounts]
    exposed_comm_us: float
    traffic_bytes: dict[str, Tally]
    wire_flits: Tally
    utilization: Amounts
    bound_us: float
    bound_resource: str
    bound_terms: Amounts
    workload_bound_us: float
    attribution: Amounts
    path_us: Amounts
    stalls: Amounts
    waiting_us: dict[str, dict[str, list[float]]]
    n_ops: int
    n_events: int
    wall_s: Amounts
    compile_s: float
    peak_rss_mb: float
    digest: str
    model_version: str
    blocks: ByName
    dropped_rows: int
    warnings: Texts
    window: ByName
    surroundings_us: Amounts
    skew: dict[str, list[float]]
    header: Texts

    @property
    def layer_us(self) -> float:
        """Time of the whole layer: `time_us`, or the estimate for the whole layer in `window`."""
        return float(self.window["time_us"]) if self.window else self.time_us

    @property
    def dropped_share(self) -> float:
        """Dropped rows over all (token, expert) rows, 0 to 1."""
        return self.dropped_rows / (self.gpus * self.tokens_per_gpu * self.topk) if self.dropped_rows else 0.0

    @property
    def asked(self) -> str:
        """What was asked of which GPUs, in a few words."""
        return asked_of({name: getattr(self, name) for name in ASKED})

    @property
    def simulated_us(self) -> float:
        """Time of the critical path without surroundings."""
        return self.time_us - self.attribution.get(SURROUNDINGS, 0.0)

    @property
    def program_us(self) -> float:
        """Time of the Program: without surroundings that are charged after the run."""
        return self.time_us - (self.attribution.get(SURROUNDINGS, 0.0) - self.path_us.get(AROUND.name, 0.0))

    @property
    def eager_us(self) -> float:
        """Time of an eager layer: `time_us` plus the host's launches."""
        return self.time_us + self.surroundings_us.get("host_us", 0.0)

    def __str__(self) -> str:
        """What was run, its time, its bounds and its critical path, in a few lines."""
        return facts([*self._facts(), ("warnings", str(len(self.warnings)) if self.warnings else "none")])

    def _repr_html_(self) -> str:
        """The same lines as a table for a notebook, with the texts of the warnings."""
        return html_table((), [*self._facts(), *(("warning", text) for text in self.warnings)], left=2)

    def _facts(self) -> list[tuple[str, str]]:
        causes = {name.removesuffix("_us"): us for name, us in self.attribution.items() if us >= self.time_us / 100}
        return [
            ("system", f"{self.system} ({self.form} form)"),
            ("workload", self.asked),
            ("time" if self.workload else "layer time", f"{self.layer_us:.2f} us" + (" (estimate for the whole layer)" if self.window else "")),
            ("lower bound", f"{self.bound_us:.2f} us ({self.bound_resource})"),
            ("critical path", ", ".join(f"{name} {us:.1f} us" for name, us in causes.items())),
        ]

    def __repr__(self) -> str:
        return f"<Row of {self.system}: {self.layer_us:.2f} us; print() shows more, to_dict() all>"

    def to_dict(self) -> ByName:
        """The fields as plain values for JSON, in the order of their declaration, without `header`.

        Fields of `LEFT_OUT` are left out when empty or 0. A Row with `surroundings_us` also has the keys `simulated_us` and `eager_us`.
        """
        out = dataclasses.asdict(self)
        del out["header"]
        for name in LEFT_OUT:
            if not out[name]:
                del out[name]
        return out | ({"simulated_us": self.simulated_us, "eager_us": self.eager_us} if self.surroundings_us else {})

    @classmethod
    def from_dict(cls, values: AnyMapping) -> Row:
        """The Row of `to_dict`, also after JSON. Without a key "header" its header is empty. Raises TypeError where a field is missing."""
        usual: ByName = LEFT_OUT | {"header": ()}
        fields = {f.name: values.get(f.name, usual.get(f.name)) for f in dataclasses.fields(cls) if f.name in values or f.name in usual}
        return cls(**fields | {name: tuple(fields[name]) for name in ("warnings", "header")})


ASKED = ("workload", "model", "cluster", "gpus", "tokens_per_gpu", "direction")


def asked_of(row: AnyMapping) -> str:
    """`Row.asked` of a Row as plain values."""
    where = f"{row['gpus']} GPUs of {row['cluster']}"
    if row.get("workload"):
        return f"{row['workload']}, {where}"
    return f"{row['model']}, {where}, {row['tokens_per_gpu']} tokens per GPU, {DIRECTIONS[row['direction']]}"


def _asked(inputs: RunInputs) -> ByName:
    """The fields of a Row that say what was asked."""
    work, model, skew = inputs.work, inputs.model, inputs.skew
    asked = {name: getattr(inputs, name) for name in ("system", "form", "layer", "direction", "fidelity", "seed", "options")}
    asked |= {"cluster": inputs.cluster.name, "gpus": work.n_gpus}
    asked["skew"] = {} if skew is None else {"start_us": [ps_to_us(ps) for ps in skew.start_ps], "slow": list(skew.slow)}
    if not isinstance(work, Routing) or model is None:
        return asked | {"workload": work.description, "model": "", "tokens_per_gpu": 0, "topk": 0, "routing": ""}
    return asked | {"model": model.name, "tokens_per_gpu": work.tokens_per_gpu, "topk": model.topk, "routing": work.description}


def form_of(cluster: Cluster, options: AnyMapping) -> str:
    """ "real" or "paper": the value of the option `form`. "auto" follows the family of the cluster.

    No option: "paper".
    """
    return "real" if is_real(str(options.get("form", "paper")), cluster) else "paper"


def measure(inputs: RunInputs, program: Program, trace: Trace, *, waiting: bool = True, passed: Bools | None = None) -> Row:
    """Count, bound and attribute a finished run: its Row without surroundings and costs, which `make_row` adds.

    `waiting`: fill `waiting_us`, too. `passed`: its `sums_that_passed`, if the caller has them.
    """
    # Hashing a large Trace and sorting its intervals take longer than all other steps, and release the interpreter lock.
    with ThreadPoolExecutor(2) as pool:
        digest = pool.submit(trace.digest)
        waits = pool.submit(waiting_us, program, trace) if waiting else None
        passed = sums_that_passed(program, trace) if passed is None else passed
        groups = group_transfers(program, passed=passed, trace=trace)
        wires = wire_table(program, groups)
        busy = pool_busy_ps(program)
        bound = program_bound(program, wires, busy)
        last = LastGpu(program, trace)
        causes, operators = critical_path(program, trace, passed)
        return Row(
            **LEFT_OUT | _asked(inputs), time_us=ps_to_us(trace.time_ps), phases_us=last.phases_us(), exposed_comm_us=ps_to_us(last.exposed_ps()),
            traffic_bytes=traffic_bytes(program, trace, groups), wire_flits=wires.flits(program.hardware.flit),
            utilization=utilization(program, trace, busy), bound_us=bound.us, bound_resource=bound.resource, bound_terms=bound.terms,
            workload_bound_us=_workload_bound_us(inputs, program),
            attribution={f"{cause}_us": ps_to_us(ps) for cause, ps in causes.items()},
            path_us={name: ps_to_us(ps) for name, ps in operators.items()}, stalls=last.stalls_us(),
            waiting_us={} if waits is None else waits.result(), n_ops=program.n_ops, n_events=trace.n_events, digest=digest.result(),
            model_version=MODEL_VERSION, wall_s={}, compile_s=0.0, peak_rss_mb=0.0, header=(),
        )  # fmt: skip


def _workload_bound_us(inputs: RunInputs, program: Program) -> float:
    """The lower bound of every system for what was asked."""
    if not isinstance(inputs.work, Routing):
        return collective_bound_us(inputs.work, inputs.cluster)
    assert inputs.model is not None  # a Routing belongs to a model
    free_gemms = not any(t.kind is Kind.COMPUTE for t in program.templates)
    sizes, row = None, inputs.model.row_bytes
    for framing in program.framings:
        if {framing.answer, framing.total} != {AS_IS}:
            out = int(program.regions.row_bytes[program.tiled_regions()].max(initial=0))
            sizes = out, framing.cast_bytes(row, framing.answer), framing.cast_bytes(row, framing.total)
    return workload_bound_us(
        inputs.model, inputs.cluster, inputs.work, direction=inputs.direction, free_links=inputs.free_links, free_gemms=free_gemms, sizes=sizes
    )


def make_row(
    measured: Row, surroundings: Surroundings | None, costs: HostCosts, *, blocks: AnyMapping, dropped_rows: int = 0,
    warnings: Texts = (), header: Texts = (),
) -> Row:  # fmt: skip
    """The Row of a finished run. `surroundings` None: the layer is the Program alone."""
    row = dataclasses.replace(
        measured, wall_s=dataclasses.asdict(costs.wall_s), compile_s=costs.compile_s, peak_rss_mb=costs.peak_rss_mb, blocks=dict(blocks),
        dropped_rows=dropped_rows, warnings=warnings, header=header,
    )  # fmt: skip
    if surroundings is None:
        return row
    charged_us = 0.0 if AROUND.name in row.path_us else surroundings.device_us
    causes = row.attribution | {SURROUNDINGS: row.attribution.get(SURROUNDINGS, 0.0) + charged_us}
    return dataclasses.replace(row, time_us=row.time_us + charged_us, attribution=causes, surroundings_us=surroundings.to_dict())
