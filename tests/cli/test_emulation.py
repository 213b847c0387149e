"""`dysharp emulate`."""

import json

import pytest

import dysharp as ds
from dysharp.functional.faults import KINDS, SCALE_OUT

SMALL = ("--gpus", "4", "--tokens", "4", "--hidden", "64", "--expert-hidden", "8")
FIELDS = {"max_abs_error", "max_rel_error", "exact", "reference", "packets", "flits", "tables", "injected"}


def test_json_has_the_promised_fields(dysharp):
    done = dysharp("emulate", "dysharp", *SMALL, "--json", "--backward")
    result = json.loads(done.out)
    assert done.code == 0
    assert set(result) >= FIELDS
    assert (result["exact"], result["max_abs_error"]) == (True, 0)
    assert result["packets"]["dymultimem.st"] > 0


@pytest.mark.sampled
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_can_be_injected(dysharp, kind):
    where = ("--cluster", "paper-dgx-h100-x2", "--gpus", "16", "--experts", "16") if kind in SCALE_OUT else ()
    done = dysharp("emulate", "dysharp", *SMALL, *where, "--tokens", "12", "--inject", kind, "--json")
    assert done.code == 0
    assert json.loads(done.out)["injected"][kind] > 0


def test_dump_prints_the_packets_of_a_token(dysharp):
    done = dysharp("emulate", "dysharp", *SMALL, "--dump", "--token", "2")
    assert done.code == 0
    assert "dymultimem.st, " in done.out
    assert "target_count" in done.out
    assert done.out.startswith("dysharp computes the layer right")


@pytest.mark.parametrize(
    ("system", "work", "cluster"), [("nccl-ring", "all-reduce:1KiB", "hw-dgx-h100"), ("cais", "sub-layer:128x128x128x128", "paper-cais-h100")]
)
def test_the_answer_names_the_workload(dysharp, system, work, cluster):
    """A sub-layer was called a collective."""
    done = dysharp("emulate", system, "--workload", work, "--cluster", cluster, "--gpus", "2")
    assert done.out.startswith(f"{system} computes the {work.partition(':')[0]} right: largest error 0\n"), done.err


def test_help_of_inject(dysharp):
    done = dysharp("emulate", "dysharp", "--inject", "help")
    assert done.code == 0
    assert all(kind in done.out for kind in KINDS)


@pytest.mark.parametrize(("kind", "block"), [("evict", "no switch adds packets"), ("al-tlb", "carry addresses"), ("nic-lose", "one NVLink")])
def test_a_fault_that_cannot_happen_says_so(dysharp, kind, block):
    done = dysharp("emulate", "deepep", *SMALL, "--inject", kind)
    assert done.code == 0
    assert f"injected {kind}" in done.out
    assert "0 times: cannot happen here: " in done.out
    assert block in done.out
    assert "deepep" in json.loads(dysharp("emulate", "deepep", *SMALL, "--inject", kind, "--json").out)["not_injected"][kind]


def test_an_emulation_prints_short(dysharp):
    done = ds.emulate("dysharp", gpus=2, tokens=2, hidden=64, inject=["duplicate"])
    assert repr(done).count("\n") == 0
    lines = str(done).splitlines()
    assert len(lines) < 10
    assert max(map(len, lines)) <= 100
    assert lines[-1].split() == ["result", "right"]


def test_options_reach_the_machine(dysharp):
    assert dysharp("emulate", "dysharp", *SMALL, "--set", "dysharp.combine_window=32").code == 0


def test_floats_and_the_order_of_the_engine(dysharp):
    done = dysharp("emulate", "comet", *SMALL, "--block", "gated", "--dtype", "bfloat16", "--backward", "--order", "trace", "--path", "row", "--json")
    assert done.code == 0
    assert json.loads(done.out)["path"] == "row"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("--inject", "evickt"), "inject 'evickt': unknown; did you mean \"evict\"?"),
        (("--block", "mixtrall"), "block 'mixtrall': unknown"),
        (("--order", "randum"), "order 'randum': unknown"),
        (("--dtype", "float16"), "dtype 'float16': unknown"),
        (("--dtype", "float32"), "expected int32 for block integer"),
        (("--path", "row", "--inject", "evict"), "path: found row with injected faults"),
        (("--topk", "99"), "topk: found 99, expected at most the 16 experts"),
        (("--tokens", "0"), "'--tokens': 0 is not in the range 1<=x<="),
        (("--path", "row", "--dump"), "dump: found row path, expected packet path (use path packet)"),
        (("--tokens", "99", "--hidden", "4096", "--dump"), "dump: found row path, expected packet path (use fewer tokens, or path packet)"),
        (("--token", "99", "--dump"), "dump: found token 99, expected 0 to 15"),
        (("--cluster", "paper-nvl72,flit_bytes=32"), "packet path: found flit_bytes 32, expected 16"),
        (("--workload", "all-reduce:1MiB", "--dump"), "dump: found --dump beside --workload, expected one of them"),
        (("--workload", "all-reduce:1MiB", "--token", "0"), "dump: found --token beside --workload, expected one of them"),
        (("--experts", "3"), "topk"),
    ],
)
def test_wrong_input_is_one_line(dysharp, line, text):
    done = dysharp("emulate", "dysharp", *SMALL, *line)
    if line == ("--experts", "3"):  # three experts on four GPUs: replicas, and top-k follows
        assert done.code == 0
        return
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert text in done.err


def test_blocks_are_listed(dysharp):
    rows = json.loads(dysharp("list", "blocks", "--json").out)
    assert {row["name"] for row in rows} >= {"integer", "gated", "deepseek-v3", "qwen3-moe", "gpt-oss", "mixtral"}
