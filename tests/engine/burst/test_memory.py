"""Memory that tasks and transfers share (docs/design/0007): times added by hand, on engine, oracle and packet level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.analysis.bound import program_bound
from dysharp.base.errors import ProgramError
from dysharp.costs import mean_share, tile_task
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Discipline, Hardware, Kind, Program, ProgramBuilder, Template, To
from dysharp.program.verify import verify
from dysharp.specs import load_cluster

HARDWARE = Hardware(
    rate=1_000_000, lat=100, ack=200, notify=0, responder=50, local=30, n_vcs=1, vc_bytes=0, n_links=1, memory_rate=2_000_000
)  # memory: 2 bytes in a ps
SLOTS = 4
TASK_PS = 1000
PUSH, PULL, WORK = "push", "pull", "work"


def program(n_tasks: int, task_bytes: int, *, transfer: Kind | None = None, n_bytes: int = 0, memory_rate: int | None = None) -> Program:
    """`n_tasks` on node 1's four slots at time zero, beside a transfer of `n_bytes` between node 0 and node 1."""
    hardware = HARDWARE if memory_rate is None else replace(HARDWARE, memory_rate=memory_rate)
    b = ProgramBuilder(hardware, 2)
    duration = b.duration([0, TASK_PS], task_bytes)
    b.framing(Framing("plain", payload_bytes=128, header=1))
    if transfer is not None:
        source = 0 if transfer is Kind.PUT else 1
        sender = b.issuer(source, Discipline.READY_FIFO, name="sender")
        template = b.template(Template(transfer.name.lower(), transfer, "dispatch"))
        b.ops(template, [source], issuer=sender, bytes=n_bytes, to=To([1], [1 - source]))
    issuer = b.issuer(1, Discipline.READY_FIFO, pool=b.pool(1, SLOTS), name="sm")
    work = b.template(Template("work", Kind.COMPUTE, "gemm1", tasks=n_tasks, duration=duration))
    b.ops(work, [1], issuer=issuer, rows=1)
    built = b.build()
    verify(built)
    return built


def work_end(p: Program) -> int:
    found, expected = run_burst(p)[0], run_oracle(p)
    assert found.digest() == expected.digest()
    return int(found.done[-1])


@pytest.mark.parametrize(
    ("tasks", "task_bytes", "end"),
    [
        (4, 500, 1000),  # 4 x 500 B take 1000 ps, as long as the tasks
        (4, 501, 1002),  # memory is slower
        (8, 100, 2000),  # two rounds of slots, memory has time
        (8, 800, 3200),  # both rounds wait: 1600 ps each
        (1, 4000, 2000),  # one task may use all of it
        (4, 0, 1000),
    ],
)
def test_tasks_share_the_memory_of_their_node(tasks: int, task_bytes: int, end: int) -> None:
    assert work_end(program(tasks, task_bytes)) == end


def test_memory_that_is_not_shared_costs_nothing() -> None:
    assert work_end(program(8, 800, memory_rate=0)) == 2000


def test_what_a_push_writes_delays_tasks() -> None:
    # One packet of 128 B and its header of 16 B are on both links by 144 ps at the earliest, there at 344 ps: 64 ps of memory are taken then.
    alone = program(8, 800)
    beside = program(8, 800, transfer=Kind.PUT, n_bytes=128)
    assert work_end(beside) == work_end(alone) + 64
    # Tasks that leave memory idle do not feel it.
    assert work_end(program(8, 100, transfer=Kind.PUT, n_bytes=128)) == work_end(program(8, 100))


def test_what_a_pull_brings_is_written_at_its_source() -> None:
    assert work_end(program(8, 800, transfer=Kind.GET, n_bytes=128)) == work_end(program(8, 800)) + 64


def test_the_bound_knows_memory() -> None:
    p = program(8, 800)
    assert program_bound(p).terms["memory"] == pytest.approx(3200e-6)
    assert program_bound(p).resource == "gpu[1].memory"
    assert program_bound(p).us <= run_burst(p)[0].time_ps / 1e6


def test_a_table_of_another_shape_is_refused() -> None:
    p = program(4, 100)
    with pytest.raises(ProgramError, match=r"task_bytes: found shape \(1, 1\), expected that of durations, \(1, 2\)"):
        verify(replace(p, task_bytes=p.task_bytes[:, :1]))
    with pytest.raises(ProgramError, match="task_bytes: found -100 B, expected 0 or more"):
        verify(replace(p, task_bytes=-p.task_bytes))


def test_the_sms_of_every_gpu_share_its_memory() -> None:
    real, paper = load_cluster("hw-dgx-h100"), load_cluster("paper-dgx-h100")
    assert real.shared_memory_rate == pytest.approx(real.hbm_bytes_per_us * real.fitted["hbm.fraction"], rel=1e-6)
    assert paper.shared_memory_rate == paper.hbm_bytes_per_us
    cold = (4096, 7168, 128, mean_share(128, 1.0))
    assert (tile_task(paper, "fp8", *cold).bytes == tile_task(real, "fp8", *cold).bytes).all()
    assert tile_task(paper, "fp8", *cold).ps[1] == 2 * 128 * 128 * 7168 * paper.n_sms * 1_000_000 // paper.fp8_flops_per_us + 1
