"""Shares of pools: no part holds more slots than its share, and a share may change while it runs (docs/design/0022)."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.oracle.run import OracleRun
from dysharp.program import Declared, Discipline, Kind, Program, ProgramBuilder, Template, Trace
from dysharp.program.merge import Part, merge
from dysharp.program.shares import with_kernel_sms
from dysharp.program.tables import Shares
from dysharp.program.verify import verify
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing
from tests.interpreters.mutants import SHARE_MUTANTS, Mutant, caught
from tests.interpreters.random_shares import random_shares
from tests.program.merge_checks import HARDWARE

SEEDS = range(30)


def gemms(tasks: list[int], slots: int, node: int = 0) -> Program:
    """A GEMM of some tasks after the other, taken in turns by two issuers of one pool on `node`."""
    b = ProgramBuilder(HARDWARE, 2)
    pool = b.pool(node, slots, "sm")
    issuers = [b.issuer(node, Discipline.READY_FIFO, pool=pool, name=f"gemm{i}") for i in range(2)]
    for i, n in enumerate(tasks):
        gemm = b.template(Template(f"gemm{i}", Kind.COMPUTE, "gemm1", tasks=n, duration=b.duration([0, 1000 + 100 * i])))
        b.ops(gemm, [node], issuer=issuers[i % 2])
    return b.build()


def run(program: Program) -> tuple[Trace, Counter[str]]:
    """The Trace of engine and oracle, which are equal. At every grant no share holds more than it has."""
    verify(program)
    oracle = OracleRun(program)
    issuers = oracle.issuers
    hold = issuers._hold

    def checked(op: Any, slots: int) -> None:
        hold(op, slots)
        share = issuers._share[op.issuer]
        assert slots < 0 or share < 0 or issuers._held[share] <= issuers._most[share]

    issuers._hold = checked  # type: ignore[method-assign]
    oracle.play()
    found, expected = run_burst(program)[0], oracle.trace()
    for f in fields(Trace):
        if f.name != "n_events":
            np.testing.assert_array_equal(getattr(found, f.name), getattr(expected, f.name), f.name)
    return found, oracle.world.counts


def test_engine_equals_oracle_and_no_share_is_exceeded() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        program = random_shares(seed)
        assert program.shares is not None
        seen.update(run(program)[1])
        seen["split"] += len(program.shares.split_op)
    assert seen["share full"] > 1000
    assert seen["split"] > 50


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 300, 10))
def test_engine_equals_oracle_on_more_shares(seed: int) -> None:
    for one in range(seed, seed + 10):
        run(random_shares(one))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SHARE_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_of_shares_are_told_from_the_oracle(mutant: Mutant) -> None:
    assert caught(mutant, range(60), random_shares) is not None


def test_shares_inside_parts_stay() -> None:
    merged = merge([Part(label, random_shares(seed)) for label, seed in (("A", 4), ("B", 4))])
    assert merged.shares is not None
    assert merged.issuers.share is not None
    assert merged.issuers.share.max() < len(merged.shares.pool)
    verify(merged)


def test_the_verifier_knows_shares() -> None:
    p = gemms([4, 4], 8)
    none = np.zeros(0, np.int32)
    shares = Shares(np.array([0], np.int32), np.array([9], np.int32), none, none, none)
    program = replace(p, issuers=replace(p.issuers, share=np.zeros(2, np.int32)), shares=shares)
    with pytest.raises(ProgramError, match="share: found 9 slots, expected 1"):
        verify(program)
    one = np.zeros(1, np.int32)
    with pytest.raises(ProgramError, match="split 0: op: found 5, expected"):
        verify(replace(program, shares=replace(shares, most=one + 1, split_op=one + 5, split_share=one, split_most=one + 1)))


def layer_with_kernels(n_sm: int) -> Program:
    """A transfer kernel in two DELAYs of its own pool beside a GEMM of 12 tasks on 4 SMs; nothing waits for the other."""
    b = ProgramBuilder(HARDWARE, 2)
    copies, sms = b.pool(0, 1, "copies"), b.pool(0, 4, "sm")
    queue, sm = (b.issuer(0, Discipline.PROGRAM_ORDER, pool=pool) for pool in (copies, sms))
    copy = b.template(Template("copy", Kind.DELAY, "dispatch", "delay", tasks=1, duration=b.duration([0, 1000])))
    b.ops(copy, [0, 0, 0], issuer=queue)
    b.ops(b.template(Template("gemm", Kind.COMPUTE, "gemm1", tasks=12, duration=b.duration([0, 1000]))), [0], issuer=sm)
    return b.build(Declared(0, kernel_sms=n_sm))


def test_a_kernel_keeps_its_sms_from_its_first_to_its_last_delay() -> None:
    """12 tasks of 1 ns on 4 SMs take 3 ns. With 2 SMs kept from 1 to 3 ns: 4 + 2 + 2 + 4 tasks, 4 ns."""
    assert run(layer_with_kernels(0))[0].time_ps == 3000
    kept = with_kernel_sms(layer_with_kernels(2))
    assert run(kept)[0].time_ps == 4000
    assert with_kernel_sms(kept) is kept


def test_kernels_of_one_part_keep_sms_from_the_gemms_of_another() -> None:
    """Two kernels at once leave 4 - 2 x 1 of 4 SMs."""
    parts = [Part(label, layer_with_kernels(1)) for label in "AB"]
    both = run(merge(parts))[0]
    free = run(merge([replace(part, program=layer_with_kernels(0)) for part in parts]))[0]
    assert (free.time_ps, both.time_ps) == (6000, 7000)  # 4 + 2 + 2 + 4 x 4 tasks


def test_a_merge_of_real_layers_counts_the_sms_of_all_kernels() -> None:
    """Forward beside backward on one pool: oracle and engine agree, and the GEMMs end later than without the SMs of kernels."""
    model = replace(load_model("deepseek-v2-lite"), hidden=512, n_experts=8, topk=2, expert_hidden=256)
    cluster = load_cluster("hw-dgx-h100").with_gpus(2)
    chosen, routing = get_system("deepep"), make_routing("uniform", model, 2, 64)
    kept, free = [], []
    for direction in ("fwd", "bwd"):
        program = chosen.plan(model, replace(cluster, n_sms=8), routing, direction, chosen.options(n_sm=6))
        assert program.declared.kernel_sms == 6
        assert (program.shares is None) == (direction == "fwd")
        kept.append(Part(direction, program))
        none = replace(program.declared, kernel_sms=0)
        free.append(Part(direction, replace(program, declared=none, shares=None, issuers=replace(program.issuers, share=None))))
    merged = merge(kept)
    assert merged.shares is not None
    assert len(np.unique(merged.issuers.share[merged.issuers.share >= 0])) == 2  # type: ignore[index]  # one for each GPU
    assert run(merged)[0].time_ps > 1.02 * run(merge(free))[0].time_ps
