"""The changes that advice tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dysharp as ds
from dysharp.analysis import Row
from dysharp.base.errors import ConfigError
from dysharp.cli.texts.advice_text import _no_estimate
from dysharp.planning.advice.prediction import AdviceRuns
from dysharp.planning.advice.what_if import _sizes
from dysharp.specs import load_cluster


@pytest.mark.parametrize(("used", "most", "tried"), [(32, 72, [16, 64]), (64, 72, [32]), (8, 0, [4]), (2, 8, [4]), (1, 2, [2])])
def test_half_and_twice_the_gpus_that_the_machine_has(used: int, most: int, tried: list[int]) -> None:
    """`most` = 0: the machine has no more GPUs than those in use. One GPU is no size to compare with."""
    assert _sizes(replace(load_cluster("paper-gh200-nvl32"), n_gpus=used, max_gpus=most)) == tried


def test_recorded_routing_keeps_its_layer() -> None:
    """The layer of median imbalance differs between 4, 8 and 16 GPUs; a change of the GPUs is no change of the layer."""
    done = ds.advise("deepseek-v2-lite", cluster="hw-dgx-h100", tokens=64, systems=["deepep"])
    layers = {entry.predicted.row.routing.split()[3] for entry in done.what_if}
    own = ds.run("deepep", model="deepseek-v2-lite", cluster="hw-dgx-h100", tokens=64, gpus=4).routing.split()[3]
    assert layers == {done.best.row.routing.split()[3]}
    assert own not in layers


def test_a_change_without_an_estimate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions on four GPUs are refused here."""
    predict = AdviceRuns.predict

    def refused(runs: AdviceRuns, jobs: list, like: Row | None = None) -> list:
        few = {4: ConfigError("too few tokens")}
        return [few.get(job.workload.request.cluster.n_gpus, one) for job, one in zip(jobs, predict(runs, jobs, like), strict=True)]

    monkeypatch.setattr(AdviceRuns, "predict", refused)
    done = ds.advise("deepseek-v2-lite", cluster="hw-dgx-h100", tokens=64, systems=["deepep"])
    assert done.no_what_if == {"EP4": "too few tokens"}
    assert done.to_dict()["no_what_if"] == {"EP4": "too few tokens"}
    assert "EP4" not in {entry.change for entry in done.what_if}
    assert _no_estimate({"EP4": "why", "EP16": "why", "links x2": "because"}) == "No estimate of: EP4, EP16 (why); links x2 (because)"


def test_a_machine_that_cannot_be_built_leaves_the_answer() -> None:
    """Half of 24 GPUs are one and a half NVLink domains."""
    done = ds.advise("deepseek-v3", cluster="hw-dgx-h100-x4", gpus=24, tokens=8, systems=["deepep-ll"])
    assert "expected at most 8, or a multiple of it" in done.no_what_if["EP12"]
    assert "deepep-ll" in done.answer[0]
