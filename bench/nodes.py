"""Kernels over several NVLink domains beside published measurements.

    python bench/nodes.py deepep      DeepEP normal, EP16 and EP32 on DGX H100 (transmit): EP32 with 24 SMs and up to 1024
                                      tokens fixed the two fixed times; all else is held out
    python bench/nodes.py readme      DeepEP's README, EP16 to EP64 on H800
    python bench/nodes.py ll          DeepEP low latency, RDMA with NVLink and RDMA alone
    python bench/nodes.py breakeven   tokens per GPU from which two hops are faster than a message per expert
    python bench/nodes.py slow        one NIC at a third of its rate, EP32
    python bench/nodes.py holdout     the fit without two nodes: what it cannot tell, and the hold-out with other rates of Dispatch
    python bench/nodes.py packet      NVLink by packets and NICs by messages against the burst level, small layers

More tokens than `FAR` lie on the line through two runs. Each line: measured, simulated, difference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

import numpy as np
from break_even import break_even

from dysharp.base.arrays import F64
from dysharp.base.units import PS_PER_US
from dysharp.engine.burst.run import run_burst
from dysharp.engine.packet.fabric import fabric_of
from dysharp.engine.packet.program import run_packet
from dysharp.measured.ep_kernels import done_ps
from dysharp.measured.family import Parsed, classify
from dysharp.measured.fitting import spread_of, standard_errors
from dysharp.measured.hold_out import FITTED, fitted_to, predicted_by_programs, rows_of
from dysharp.measured.measurements import read_measurements
from dysharp.measured.predictions import errors_of, measured_values
from dysharp.specs import Cluster, load_cluster, load_model
from dysharp.specs.cluster import ScaleOut
from dysharp.specs.fitted import fitted
from dysharp.systems import all_systems, get_system
from dysharp.workload import make_routing
from dysharp.workload.closed import expected_copies

NEAR, FAR = 256, 768
SLOPE_STEP = 0.1  # of a logarithm, for slopes of Programs, whose rows come in whole chunks
NIC_GBPS, LATENCY_US = 47.0, 8.0
MODEL = replace(load_model("deepseek-v3"), gemm_dtype="bf16", dispatch_format="rows", n_group=8, topk_group=4)
README = {16: (43, 43), 32: (58, 57), 64: (51, 50)}
"""GPUs -> printed GB/s of Dispatch and Combine, own domain included: DeepEP docs/legacy.md, 4096 tokens, 24 SMs."""
LL = {"nvlink": {16: (118, 195), 32: (155, 273), 64: (173, 314)}, "nic": {8: (163, 318), 16: (173, 329), 32: (182, 350), 64: (186, 353)}}
"""Peers -> GPUs -> us of Dispatch and Combine: DeepEP docs/legacy.md (June 2025) and README of February 2025."""


def machine(base: str, gpus: int, domain: int = 8, **scale_out: object) -> Cluster:
    """`gpus` GPUs of `base` in domains of `domain`."""
    net = ScaleOut(domain, NIC_GBPS, LATENCY_US, **scale_out)  # type: ignore[arg-type]
    return replace(load_cluster(base), n_gpus=gpus, max_gpus=gpus, scale_out=net)


@cache
def times(cluster: Cluster, tokens: int, routing: str, n_sm: int) -> tuple[float, float, list[float]]:
    """Microseconds of Dispatch and Combine of `deepep` without their notify, and the ends of Dispatch by GPU."""
    chosen = get_system("deepep")
    routed = make_routing(routing, MODEL, cluster.n_gpus, tokens)
    program = chosen.plan(MODEL, cluster, routed, "fwd", chosen.options(form="real", compute=False, dispatch="fp8", n_sm=n_sm))
    trace, _ = run_burst(program)
    notified, received, again = (done_ps(program, trace, mark) / PS_PER_US for mark in ("dispatch.notify", "received", "combine.notify"))
    last = [i for i, t in enumerate(program.templates) if t.name == "received"]
    ends = [float(ps) / PS_PER_US for ps in trace.done[program.ops.template == last[0]]] if last else []
    return received - notified, trace.time_ps / PS_PER_US - (again or received), ends


def at(tokens: int, cluster: Cluster, routing: str, n_sm: int) -> tuple[float, ...]:
    """Dispatch and Combine at `tokens`, from the line through two runs beyond `FAR`."""
    if tokens <= FAR:
        return times(cluster, tokens, routing, n_sm)[:2]
    near, far = (times(cluster, n, routing, n_sm)[:2] for n in (NEAR, FAR))
    return tuple(b + (tokens - FAR) / (FAR - NEAR) * (b - a) for a, b in zip(near, far, strict=True))


def deepep() -> None:
    """Rows of the packaged table."""
    rows = [m for m in read_measurements() if "multi-node" in m.hardware and m.metric == "latency_transmit"]
    errors: dict[tuple[str, int, int], list[float]] = {}
    for m in rows:
        c = m.config
        if c["ep"] > 32:
            continue
        found = at(c["tokens_per_rank"], machine("hw-dgx-h100", c["ep"]), "uniform", c["sms"])
        us = found[m.kind == "ep_combine"]
        errors.setdefault((m.kind, c["ep"], c["sms"]), []).append(100 * (us / m.value - 1))
        where = f"{m.kind:12} EP{c['ep']} {c['sms']} SMs {c['tokens_per_rank']:6} tokens"
        print(f"{where}: {m.value:8.1f} {us:8.1f} us {100 * (us / m.value - 1):+6.1f} %")
    for (kind, ep, sms), all_of in sorted(errors.items()):
        print(f"median {kind:12} EP{ep} {sms} SMs: {median(map(abs, all_of)):.1f} %")


def readme() -> None:
    """Printed GB/s of the README against ours, in the same counting: rows of all domains, own included, over the time."""
    for gpus, printed in README.items():
        found = at(4096, machine("hw-dgx-h800", gpus), "uniform:group-limited" if gpus > 32 else "uniform", 24)
        domains = 4.0 if gpus > 32 else expected_copies(gpus // 8, 256, 8)
        for verb, us, row, gbps in zip(("dispatch", "combine"), found, (7392, 14336), printed, strict=True):
            ours = 4096 * domains * row / us / 1000
            print(f"{verb:9} EP{gpus}: {gbps} {ours:.1f} GB/s {100 * (ours / gbps - 1):+.1f} %")


def low_latency() -> None:
    """128 tokens, 288 experts; 320 on 64 GPUs, which cannot share 288 evenly."""
    chosen = get_system("deepep-ll")
    for peers, rows in LL.items():
        options = chosen.options(form="real", compute=False, dispatch="fp8", peers=peers)
        for gpus, measured in rows.items():
            cluster = machine("hw-dgx-h800", gpus, 4 if gpus == 8 else 8)
            model = replace(MODEL, n_experts=gpus * -(-288 // gpus), n_group=1, topk_group=1)
            program = chosen.plan(model, cluster, make_routing("uniform", model, gpus, 128), "fwd", options)
            trace, _ = run_burst(program)
            received = done_ps(program, trace, "received") / PS_PER_US
            for verb, us, took in zip(("dispatch", "combine"), measured, (received, trace.time_ps / PS_PER_US - received), strict=True):
                print(f"{verb:9} peers by {peers:6} EP{gpus}: {us} {took:.1f} us {100 * (took / us - 1):+.1f} %")


def slow() -> None:
    """How long Dispatch takes on every GPU when one NIC has a third of its rate."""
    for name, nics in (("all alike", ()), ("GPU 3 at a third", ((3, 1 / 3),))):
        dispatch, combine, ends = times(machine("hw-dgx-h100", 32, slow_nics=nics), 512, "uniform", 24)
        print(f"{name:17}: dispatch {dispatch:.0f} us, first GPU {min(ends) - max(ends) + dispatch:.0f} us; combine {combine:.0f} us")


def packets() -> None:
    """Times of whole layers at both levels: S-8 with 32 experts."""
    model = replace(load_model("S-8"), name="small", n_experts=32)
    print(f"{'cluster':18} tokens  {'system':12} {'form':5} burst us packet us  difference  bytes by network")
    for name, tokens in (("paper-dgx-h100-x2", 16), ("paper-dgx-h100-x2", 256), ("hw-dgx-h100-x2", 64), ("paper-dgx-h100-x4", 16)):
        cluster = load_cluster(name)
        routing = make_routing("uniform", model, cluster.n_gpus, tokens)
        for system in (one for one in all_systems().values() if one.reach.domains):
            form = "real" if cluster.software_costs and system.has_real_form else "paper"
            if not system.reach.runs_on(cluster, form):
                continue
            program = system.plan(model, cluster, routing, "fwd", system.options())
            burst, packet = run_burst(program)[0], run_packet(program, fabric_of(cluster)).trace
            same = (burst.up_busy == packet.up_busy).all() and (burst.down_busy == packet.down_busy).all()
            us, more = burst.time_ps / PS_PER_US, 100 * (packet.time_ps / burst.time_ps - 1)
            where = f"{name:18} {tokens:6}  {system.name:12} {form:5}"
            print(f"{where} {us:8.2f} {packet.time_ps / PS_PER_US:9.2f}  {more:+8.2f} %  {'equal' if same else 'NOT equal'}")


def crossing() -> None:
    """Two hops against a message per expert, FP8 Dispatch of DeepSeek-V3 on DGX H100."""
    print("GPUs  nodes per token  closed form  simulated  difference")
    for gpus, limited, closed in ((16, True, 115), (32, True, 145), (64, True, 155), (64, False, 225)):
        found = break_even(gpus, limited=limited)
        print(f"{gpus:4}  {'at most four' if limited else 'any':15}  {closed:11}  {found:9.0f}  {100 * (found / closed - 1):+8.0f} %")


def errors_by_programs(rows: Sequence[Parsed], values: Mapping[str, float], jobs: int = 1) -> F64:
    """`[FITTED]` relative standard errors of the family's constants in a fit to `rows`, from slopes of Programs at `values`."""
    trials = [dict(values), *({**values, name: values[name] * np.exp(SLOPE_STEP)} for name in FITTED)]
    base, *moved = (np.log(predicted_by_programs(rows, trial, jobs)) for trial in trials)
    slopes = np.stack([(column - base) / SLOPE_STEP for column in moved], axis=1)
    return standard_errors(slopes, spread_of(base - np.log(measured_values(rows))))


def holdout() -> None:
    """The hold-out by number of nodes with Dispatch's rate per SM from elsewhere, in the fold that cannot tell it."""
    constants, name = fitted(), "internode.dispatch_GBps"
    rows, gpus = rows_of(classify(read_measurements()).parsed)
    groups = {n: [row for row, own in zip(rows, gpus.tolist(), strict=True) if own == n] for n in (16, 32)}
    fits = {n: fitted_to(own, constants) for n, own in groups.items()} | {0: fitted_to(rows, constants)}
    for n, own in groups.items():
        errors = zip(FITTED, errors_by_programs(own, fits[n]), strict=True)
        print(f"fit to EP{n}: " + ", ".join(f"{one} {fits[n][one]:.1f} (standard error {100 * error:.0f} %)" for one, error in errors))
    copies = expected_copies(16, 256, 8)
    row, look = 7392, constants["deepep.token_us"].value
    inside = copies * row / 2e3 / (look + copies * row / (1e3 * constants["sm.copy_GBps"].value))
    rates = {
        "fit to EP32": fits[32][name],
        "Combine's of the same fit": fits[32]["internode.combine_GBps"],
        "of Dispatch in a domain": inside,
        "fit to all rows": fits[0][name],
    }
    measured = {n: measured_values(own) for n, own in groups.items()}
    fit = errors_of(predicted_by_programs(rows, fits[0]), measured_values(rows)).median_ape
    other = predicted_by_programs(groups[32], fits[16])
    verbs = np.array([row.case.verb == "dispatch" for row in groups[16]])
    print("rate of Dispatch, GB/s per SM        EP16 dispatch  EP16 combine  all held out  ratio")
    for what, rate in rates.items():
        values = fits[32] if what == "fit to EP32" else fitted_to(groups[32], constants, given={name: rate})
        own = predicted_by_programs(groups[16], values)
        parts = [errors_of(own[of], measured[16][of]).median_ape for of in (verbs, ~verbs)]
        held = errors_of(np.append(own, other), np.append(measured[16], measured[32])).median_ape
        print(f"{rate:5.1f} {what:30} {parts[0]:11.1f} % {parts[1]:11.1f} % {held:11.1f} % {held / fit:6.2f}")


if __name__ == "__main__":
    verbs = {"deepep": deepep, "readme": readme, "ll": low_latency, "slow": slow, "packet": packets, "breakeven": crossing, "holdout": holdout}
    verbs[sys.argv[1]]()
