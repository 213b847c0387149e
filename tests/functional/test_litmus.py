"""The memory model: litmus tests in every order, rules that forbid something, and the fence of the runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dysharp.cli.app import cli
from dysharp.errors import ConfigError, EmulationMismatch, IsaError
from dysharp.functional import litmus
from dysharp.functional.litmus import DYSHARP, PACKAGED, Litmus, _outcomes, _sampled, check_log, judge, load_litmus, log_of
from dysharp.functional.memory_models import ISAS
from dysharp.functional.runtime import Device, DyMulticastObjectProp

SLOW = {"two-writers"}
NAMES = sorted(path.stem for path in PACKAGED.glob("*.toml"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES])
def test_outcomes_are_those_allowed_and_deleted_rules_forbid_something(name: str) -> None:
    assert judge(name, load_litmus(name)).faults == ()


@pytest.mark.parametrize("name", ["mp", "mp-no-fence", "same-block", "store-buffering"])
def test_orders_that_are_left_out_reach_nothing_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = load_litmus(name)
    few = _outcomes(test)
    monkeypatch.setattr(litmus, "_place", lambda event: "one place")  # all events touch the same: every order runs
    assert _outcomes(test) == few


def test_every_isa_has_programs_and_every_rule_forbids_something() -> None:
    """What a rule forbids is out of reach with it, and is reached without it: `judge` says so of each program.

    Not `trap`: a block here is one vector, and one that nobody wrote has no row either, whose load is refused without the rule, too.
    """
    tests = [load_litmus(name) for name in NAMES]
    for isa in (DYSHARP, *ISAS):
        own = [test for test in tests if test.isa == isa]
        assert len(own) >= 3, isa
        assert {rule for test in own for rule, forbidden in test.without.items() if forbidden} == set(own[0].rules) - {"trap"}, isa


@pytest.mark.parametrize("name", NAMES)
def test_orders_drawn_at_random_give_allowed_outcomes_alone(name: str) -> None:
    """On the functional machine where the ISA has one, else on its rules."""
    test = load_litmus(name)
    assert {_sampled(test, seed) for seed in range(30)} <= set(test.allowed)


def test_a_barrier_is_passed_again_and_again() -> None:
    threads = (("st x 1 @0", "sync", "wait y", "sync"), ("sync", "ldc x @0 -> r", "done", "st y 1 @0", "sync"))
    assert _outcomes(Litmus("", threads, (), isa="cais", show=("y@0",))) == ("r=1 y@0=1",)
    assert _outcomes(Litmus("", (("sync", "sync"), ("sync",)), (), isa="cais")) == ("",)


@pytest.mark.parametrize("name", NAMES)
def test_a_log_is_allowed_as_it_was_written_and_not_with_a_forbidden_outcome(name: str, tmp_path: Path) -> None:
    if name in SLOW:
        pytest.skip("all orders of its log take a minute")
    test, path = load_litmus(name), tmp_path / "log.jsonl"
    path.write_text(log_of(test, 1))
    assert check_log(path).faults == ()
    assert set(check_log(path).outcomes) == set(test.allowed)
    forbidden = [outcome for each in test.without.values() for outcome in each]
    for outcome in forbidden:
        values = litmus._values(outcome)
        head, *lines = [json.loads(line) for line in log_of(test, 1).splitlines()]
        words = [line.get("block") or line.get("op", "-").split()[-1] for line in lines]
        lines = [line | ({"value": values[word]} if word in values else {}) for word, line in zip(words, lines, strict=True) if "ended" not in line]
        if not values:
            lines = [*({key: one for key, one in line.items() if key != "value"} for line in lines if "op" in line), {"ended": outcome}]
        path.write_text("\n".join(map(json.dumps, [head, *lines])))
        assert check_log(path).faults, outcome


def test_a_register_may_have_the_name_of_a_block(tmp_path: Path) -> None:
    test, path = Litmus("", (("st x 1 @1", "notify 1 x"), ("wait x", "ld x @1 -> x")), ()), tmp_path / "log.jsonl"
    path.write_text(log_of(test, 0))
    assert check_log(path).faults == ()


def test_values_that_a_log_leaves_out_may_be_any(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"isa": "multimem", "gpus": 2}\n{"gpu": 0, "op": "st x 1 @1"}\n{"gpu": 1, "op": "ld x @1 -> r"}\n')
    assert check_log(path).faults == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found other lines, expected gpus in the first line"),
        ('{"gpus": 0}\n', "threads: found none, expected one for each GPU"),
        ("{}\n3\n", "expected gpus in the first line"),
        ('{"isa": "cais", "gpus": 1}\n{"gpu": 3, "op": "sync"}\n', "found 1 operations of other GPUs"),
        ('{"isa": "cias", "gpus": 1}\n', 'did you mean "cais"'),
        ('{"isa": "cais", "gpus": 1}\n{"gpu": 0, "op": "fence"}\n', "expected an instruction of cais"),
        ('{"isa": "cais", "gpus": 1}\n{"gpu": 0, "op": "ready 1"}\n', "expected an instruction of cais"),
        ('{"gpus": 2}\n{"gpu": 0, "op": "st x 1 @1", "value": 1}\n', "expected gpus in the first line"),
        ('{"gpus": 1}\n{"end": "trap"}\n', "expected gpus in the first line"),
        ('{"gpus": 1}\n{"ended": "well"}\n', "expected trap or hangs"),
        ('{"gpus": 1, "show": 3}\n', "expected gpus in the first line"),
        ('{"gpus": 1}\n{"gpu": 0, "op": "ld x @0 -> r", "value": 7}\n{"ended": "trap"}\n', "found ended 'trap' and 1 values"),
        ('{"gpus": 1}\n{"gpu": 0, "op": "ld x @0 -> r"}\n{"gpu": 0, "op": "ld x @0 -> r"}\n', "found 2 loads into r"),
    ],
)
def test_what_is_no_log_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        check_log(path)


def test_blocks_of_a_log_are_shown_without_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for value in (3, 4):
        ops = '{"isa": "cais", "gpus": 3}\n{"gpu": 1, "op": "redc x 1 @0"}\n{"gpu": 2, "op": "redc x 2 @0"}\n'
        path.write_text(ops + json.dumps({"block": "x@0", "value": value}))
        assert bool(check_log(path).faults) == (value == 4)


def test_a_red_adds_once_whole_or_torn_and_a_releasing_red_adds() -> None:
    def red(op: str) -> Litmus:
        return Litmus("", ((f"{op} x 11 @2",), (f"{op} x 22 @2",), ("wait x 33",)), (), isa="multimem", show=("x@2",))

    assert {_outcomes(red(op), deleted) for op in ("red", "rel") for deleted in ("", "whole")} == {("x@2=33",)}


def test_the_command_writes_and_checks_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert CliRunner().invoke(cli, ["emulate", "cais-sum.toml", "--log", str(log), "--seed", "2"]).exit_code == 0
    assert "is allowed" in CliRunner().invoke(cli, ["emulate", str(log)]).output
    log.write_text(log.read_text().replace('"value": 3}', '"value": 4}'))
    found = CliRunner().invoke(cli, ["emulate", str(log)])
    assert isinstance(found.exception, EmulationMismatch)
    for more in (["dysharp/x.toml", "--gpus", "8"], [str(log), "--seed", "1"], [str(log), "--backward"]):
        assert f"found {more[1]}, expected no option of a layer" in str(CliRunner().invoke(cli, ["emulate", *more]).exception)
    wrong = CliRunner().invoke(cli, ["emulate", "dysharp", "--log", str(log)])
    assert "--log: found system dysharp" in str(wrong.exception)


def test_a_wrong_claim_is_a_fault() -> None:
    threads = (("st x 1 @1", "fence", "notify 1 x"), ("wait x", "ld x @1 -> r"))
    said = judge("wrong", Litmus("", threads, ("r=2",), {"trap": ("r=3",)}))
    assert said.faults == ("found r=1, expected one of r=2", "no order gives r=2", "r=3 stays out of reach without trap")
    assert _outcomes(Litmus("", (("wait x",), ()), ())) == ("hangs",)


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


def test_a_test_that_allows_nothing_says_so() -> None:
    assert litmus.judge("a", Litmus("", (("st x 1 @0",),), ())).faults == ("found no value, expected one of -",)
