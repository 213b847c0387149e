"""The `dysharp step` that a plan prints answers as long as the plan says: layouts drawn over models, GPUs, sharing, recomputation and precision.

Loads are even, because a plan takes the mean over many draws and a step one. Overlapped pairs are left out: the schedule of a step pairs passes one
by one, a plan's formula in the mean.
"""

import json
import random
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from dysharp.api.planning import Answer, plan
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.cli.texts.plan_text import _for_step
from dysharp.specs import load_cluster

APART = {1: 0.01, 2: 0.03, 4: 0.08}
"""By stages of the pipeline: `step` replays the schedule, and the formula of a plan takes an uneven stage for longer (48 layouts: up to 6.8 %)."""
CELLS = 12
Cell = tuple[str, str, str, tuple[str, ...], int]
MODELS = ("qwen3-30b", "mixtral-8x7b", "deepseek-v2-lite", "moonlight-16b")
CLUSTERS = ("hw-dgx-h100", "hw-dgx-b200")


def stages(cell: Cell) -> int:
    """Of the pipeline."""
    return int(dict(text.split("=") for text in cell[3])["pp"])


def planned(cell: Cell) -> Answer:
    """The only layout of a space of one."""
    model, cluster, precision, tries, sequence = cell
    gpus = 8 * stages(cell)
    machine = load_cluster(cluster if gpus == 8 else f"{cluster}-x{gpus // 8}")
    return plan(model, gpus, machine, batch=4 * gpus, tries=tries, spread=0.0, precision=precision or None, sequence=sequence, n_best=1)


def draw(n: int = CELLS, seed: int = 54) -> list[Cell]:
    """Seeded layouts that fit the memory of their GPUs."""
    rng, found = random.Random(seed), list[Cell]()
    while len(found) < n:
        pp, weights = rng.choice((1, 2, 4)), rng.choice(("whole", "sharded"))
        tries = {
            "tp": 1, "pp": pp, "vpp": rng.choice((1, 2)) if pp > 1 else 1, "ep": 8, "etp": 1, "cp": 1, "mbs": rng.choice((1, 2, 4)),
            "weights": weights, "recompute": rng.choice(("none", "moe_act", "full")), "offload": "none", "overlap": "none", "schedule": "1f1b",
            "system": rng.choice(("alltoall", "deepep")),
        }  # fmt: skip
        said = tuple(f"{key}={value}" for key, value in tries.items())
        cell = rng.choice(MODELS), rng.choice(CLUSTERS), rng.choice(("", "", "fp8", "mxfp8")), said, rng.choice((2048, 4096))
        try:
            planned(cell)
        except ConfigError:  # it does not fit
            continue
        found.append(cell)
    return found


def stepped(cell: Cell, *more: str) -> tuple[float, float]:
    """Seconds of a step by the plan, and by the command that it prints."""
    model, cluster, precision, *_ = cell
    one = planned(cell).plan.first
    options = shlex.split(_for_step(one.found.best[0], one.task, one.coster.machine.cluster, precision).replace("\\\n", " "))
    done = CliRunner().invoke(cli, ["step", model, "--cluster", cluster, *options, *more, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    assert len(answer["steps"]) == 1
    return one.found.best[0].step_us / 1e6, answer["step_us"] / 1e6


def test_the_step_of_a_plan_takes_as_long() -> None:
    """16 to 30 % apart before both let the framework compute the experts, one launch for each."""
    for cell in draw():
        asked, answered = stepped(cell, "--quick")
        assert answered == pytest.approx(asked, rel=APART[stages(cell)]), cell


@pytest.mark.sampled
@pytest.mark.parametrize(("state", "weights"), [("bf16-gradients", "whole"), ("bf16-gradients", "sharded"), ("bf16-whole", "whole")])
def test_a_state_takes_as_long_in_both(state: str, weights: str) -> None:
    """`state` changed the memory of both and the time of neither, but for an optimizer that is not shared in `plan` alone."""
    tries = "tp=1", "pp=1", "vpp=1", "ep=8", "etp=1", "cp=1", "mbs=1", f"weights={weights}", "recompute=full", "offload=none", "overlap=none"
    asked, answered = stepped(("deepseek-v2-lite", "hw-dgx-h100", f"bf16,state={state}", (*tries, "schedule=1f1b", "system=alltoall"), 2048))
    assert answered == pytest.approx(asked, rel=APART[1])
    before = stepped(("deepseek-v2-lite", "hw-dgx-h100", "bf16", (*tries, "schedule=1f1b", "system=alltoall"), 2048))
    assert (answered < before[1]) == (asked < before[0]) == (state == "bf16-gradients")


@pytest.mark.long
def test_a_simulated_exchange_leaves_the_step_as_long() -> None:
    tries = "tp=1", "pp=1", "vpp=1", "ep=8", "etp=1", "cp=1", "mbs=4", "weights=sharded", "recompute=full", "offload=none", "overlap=none"
    asked, answered = stepped(("moonlight-16b", "hw-dgx-b200", "", (*tries, "system=deepep"), 1024))
    assert answered == pytest.approx(asked, rel=APART[1])
