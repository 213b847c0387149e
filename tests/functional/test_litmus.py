"""The memory model: litmus tests in every order, rules that forbid something, and the fence of the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dysharp.errors import ConfigError, IsaError
from dysharp.functional import litmus
from dysharp.functional.litmus import PACKAGED, Litmus, judge, load_litmus, outcomes
from dysharp.functional.runtime import Device, DyMulticastObjectProp

SLOW = {"two-writers"}
NAMES = sorted(path.stem for path in PACKAGED.glob("*.toml"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES])
def test_outcomes_are_those_allowed_and_deleted_rules_forbid_something(name: str) -> None:
    assert judge(name, load_litmus(name)).faults == ()


@pytest.mark.parametrize("name", ["mp", "mp-no-fence", "same-block", "store-buffering"])
def test_orders_that_are_left_out_reach_nothing_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = load_litmus(name)
    few = outcomes(test)
    monkeypatch.setattr(litmus, "_place", lambda event: "one place")  # all events touch the same: every order runs
    assert outcomes(test) == few


def test_a_wrong_claim_is_a_fault() -> None:
    threads = (("st x 1 @1", "fence", "notify 1 x"), ("wait x", "ld x @1 -> r"))
    said = judge("wrong", Litmus("", threads, ("r=2",), {"trap": ("r=3",)}))
    assert said.faults == ("found r=1, expected one of r=2", "no order gives r=2", "r=3 stays out of reach without trap")
    assert outcomes(Litmus("", (("wait x",), ()), ())) == ("hangs",)


@pytest.mark.parametrize("text", ["st x 1", "ld q @0 -> r", "st x 1 @9", "st x 9999999999 @0", "notify 2 x", "jump"])
def test_an_unknown_instruction_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'about = ""\nthreads = [["{text}"], []]\nallowed = []\n')
    with pytest.raises(ConfigError, match="expected one of st x 1 @0"):
        load_litmus(path)


def test_a_fence_holds_back_what_follows_until_all_before_is_done() -> None:
    device = Device(2, 1)
    obj = device.create(DyMulticastObjectProp(256, stage=1), 2)
    obj.bind(0, [2])
    obj.bind(1, [2])
    first = device.dymultimem_st(0, obj, obj.address(0), np.arange(64, dtype=np.int32), [1])
    device.fence(0)
    then = device.dymultimem_st(0, obj, obj.address(1), np.ones(64, np.int32), [1])
    device.notify(0, 1, 1, 0)
    while not first.done:
        assert len(list(device.network.under_way())) <= 2
        assert not then.done
        assert not device.told
        device.step()
    device.run()
    assert then.done
    assert device.told
    with pytest.raises(IsaError, match="fence gpu"):
        device.fence(2)


def test_a_load_of_a_half_written_block_is_refused() -> None:
    device = Device(2, 1)
    obj = device.create(DyMulticastObjectProp(32, stage=1), 1)
    obj.bind(1, [1])
    device.dymultimem_st(0, obj, obj.address(0), np.ones(4, np.int32), [1])
    device.run()
    device.dymultimem_ld_reduce(0, obj, obj.address(0), 8, [1])
    with pytest.raises(IsaError, match="unwritten for block 0"):
        device.run()
