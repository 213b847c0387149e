"""What the commands print, and where."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from dysharp import __version__
from dysharp.cli.app import cli
from dysharp.cli.texts.examples import EXAMPLES
from dysharp.systems import all_systems
from tests.cli.reference import files

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--gpus", "4", "--tokens", "24")
Call = Callable[..., Any]


def test_run_json_is_the_row(dysharp: Call) -> None:
    done = dysharp("run", "dysharp", *SMALL, "--json", "--set", "dysharp.combine_window=32", "--seed", "3")
    row = json.loads(done.out)
    assert done.code == 0
    assert (row["system"], row["seed"], row["options"]["combine_window"]) == ("dysharp", 3, 32)
    assert "no software cost is charged" in done.err


def test_a_plan_of_files_prints_a_command_that_finds_them(dysharp: Call, tmp_path: Path) -> None:
    model, machine = tmp_path / "mine.toml", tmp_path / "fast.toml"
    model.write_text('base = "qwen3-30b"\nname = "mine"\n[whole]\ncontext = 4096\n')
    machine.write_text('base = "hw-dgx-h100"\nname = "h100-fast"\nlink_GBps = 900\n')
    done = dysharp("plan", f"qwen3-32b, {model}", "--cluster", str(machine), "--gpus", "8", "--try", "tp=1", "--try", "pp=1", "--quick")
    assert done.code == 0
    assert f"dysharp step {model} --cluster {machine} \\" in done.out


def test_a_layer_says_that_a_checkpoint_is_narrower(dysharp: Call, tmp_path: Path) -> None:
    said = "weights: mxfp4 in memory, widened as they are read; products bf16"
    assert said in dysharp("run", "deepep", "--model", "gpt-oss-20b", *SMALL, "--quick").err
    assert said not in dysharp("run", "deepep", "--model", "qwen3-30b", *SMALL, "--quick").err


def test_a_window_is_labelled(dysharp: Call) -> None:
    words = ("run", "deepep", "--gpus", "4", "--tokens", "96", "--fidelity", "packet", "--window", "32", "--set", "deepep.compute=false")
    done = dysharp(*words)
    assert done.code == 0
    assert "leading tokens: only the first 32 tokens of each GPU are simulated; the time of all 96 is an" in done.err
    row = json.loads(dysharp(*words, "--json").out)
    assert f"{row['window']['time_us']:.2f} us for 96 tokens per GPU" in done.out
    assert (row["tokens_per_gpu"], row["window"]["of_tokens"]) == (32, 96)


def test_blocks_of_the_fabric_are_shown(dysharp: Call) -> None:
    words = ("run", "dysharp", *SMALL, "--fidelity", "packet")
    done, row = dysharp(*words), json.loads(dysharp(*words, "--json").out)
    al, sessions = row["blocks"]["al_tlb"], row["blocks"]["reduction"]["sessions"]
    assert sessions > 0
    assert f"{al['lookups']} lookups, {al['hit_rate']:.1%} hits, {al['misses']} reads of memory, {al['merged']} joined" in done.out
    assert f"{sessions} sessions" in done.out
    assert "stalls by cause" in done.out
    assert "stalls by cause" not in dysharp("run", "dysharp", *SMALL).out


@pytest.mark.parametrize("direction", ["bwd", "both"])
def test_other_passes(dysharp: Call, direction: str) -> None:
    row = json.loads(dysharp("run", "comet", *SMALL, "--direction", direction, "--json").out)
    assert row["direction"] == direction
    done = dysharp("compare", *SMALL, "--direction", direction)
    assert max(map(len, done.out.splitlines())) <= 100
    assert "backward" in done.err
    rows = json.loads(dysharp("compare", *SMALL, "--direction", direction, "--json").out)["rows"]
    assert {row["direction"] for row in rows} == {direction}
    assert row["time_us"] == next(row["time_us"] for row in rows if row["system"] == "comet")


def test_run_prints_units(dysharp: Call) -> None:
    out = dysharp("run", "deepep", *SMALL).out
    for part in ("layer time", " us", " MB", " %", "flits up", "critical path", "deepep (paper form)"):
        assert part in out


def test_layers_of_real_machines_say_what_surrounds_them(dysharp: Call) -> None:
    words = (*SMALL, "--cluster", "hw-dgx-h100")
    out = dysharp("run", "deepep", *words).out
    row = json.loads(dysharp("run", "deepep", *words, "--json").out)
    permute = row["surroundings_us"]["permute_us"]
    times = [f"{row[name]:.2f} us" for name in ("time_us", "simulated_us", "eager_us")]
    for part in (*times, f"permute {permute:.1f} us"):
        assert part in out
    assert row["time_us"] > row["simulated_us"] + permute
    assert f"{row['time_us'] - row['simulated_us']:.2f} us of permute" in out  # with `simulated_us` it is the layer time
    table = dysharp("compare", *words, "--systems", "deepep,dysharp").out
    assert max(map(len, table.splitlines())) <= 100
    assert f"{row['time_us']:.1f}" in table
    assert f" {row['time_us'] - row['simulated_us']:.1f} " in table
    assert "outside kernels" in table
    assert "outside kernels" not in dysharp("compare", *SMALL, "--systems", "deepep,dysharp").out


def test_compare_json(dysharp: Call) -> None:
    done = json.loads(dysharp("compare", *SMALL, "--systems", "deepep,ideal", "--json").out)
    assert list(done) == ["rows", "baseline", "baselines", "speedup", "header", "sentence", "model_version"]
    assert [row["system"] for row in done["rows"]] == ["deepep", "ideal"]


def test_packet_level_says_first_how_long_it_takes(dysharp: Call) -> None:
    done = dysharp("compare", *SMALL, "--systems", "deepep", "--fidelity", "packet")
    assert re.search(r"packet level: about \S+ packets on links, about \d+ s \(an estimate", done.err)
    assert "packet level: about" not in dysharp("compare", *SMALL, "--systems", "deepep").err


def test_compare_table_fits_and_is_plain(dysharp: Call) -> None:
    done = dysharp("compare", *SMALL)
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in done.out
    assert lines[0].startswith("Fastest is ")
    first = next(i for i, line in enumerate(lines) if line.startswith("system")) + 1
    assert [line.split()[0] for line in lines[first : first + 6]] == ["deepep", "nvls", "comet", "fusion-only", "dysharp", "ideal"]
    assert "warning: paper clusters are not validated" in done.err


def test_baseline_defaults_to_the_first_without_deepep(dysharp: Call) -> None:
    done = json.loads(dysharp("compare", *SMALL, "--systems", "comet,ideal", "--json").out)
    assert done["baseline"] == "comet"


@pytest.mark.parametrize("what", ["systems", "models", "clusters", "cluster-keys", "options", "figures", "blocks"])
def test_lists(dysharp: Call, what: str) -> None:
    rows = json.loads(dysharp("list", what, "--json").out)
    table = dysharp("list", what)
    assert (table.code, table.err) == (0, "")
    assert max(map(len, table.out.splitlines())) <= 100
    for row in rows:
        name = row["name"].partition(".")[2] if row.get("of") in all_systems() else row["name"]
        assert name in table.out
    if what == "systems":
        assert [row["name"] for row in rows] == sorted(all_systems())
    if what == "options":
        window = next(row for row in rows if row["name"] == "dysharp.combine_window")
        assert (window["low"], window["high"], window["automatic"]) == (16, 256, 0)
        assert window["reason"]
        assert window["set_by"] == "--set dysharp.combine_window=VALUE"
        assert all(row["values"] not in ("", "-") for row in rows if row["of"] != "fabric")


OPTIONS = """\
Options of systems: --set SYSTEM.OPTION=VALUE
real form: on hw-* clusters, unless form=paper

deepep
option    default  values                    meaning
form      auto     auto, paper, real         software costs; paper: none; real: costs of the
                                             released kernels; auto: real on hw-* clusters
n_sm      20       2 to 64 SMs, an even      SMs of the communication kernels (real form only)
                   number
dispatch  rows     rows, fp8                 format of token rows in Dispatch; rows: the model's own
                                             type
compute   true     true, false               false leaves the GEMMs out: communication alone

"""
BLOCKS = """\
name         summary
integer      plain experts on integers: every sum is exact (dtype int32)
gated        SwiGLU experts in NumPy, gate weights by softmax (float32 or bfloat16)
"""


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_lists_as_text(dysharp: Call) -> None:
    options = stripped(dysharp("list", "options").out)
    assert options.startswith(OPTIONS.partition("deepep\n")[0])
    assert OPTIONS.partition("\n\n")[2] in options
    assert "fabric.al_entries            entries of the AL TLB of a GPU; 0: no limit" in dysharp("list", "options").out
    assert "machine.train_bytes = 16384 (4096 to 16384 bytes; assumed)" in dysharp("list", "options").out
    assert stripped(dysharp("list", "blocks").out).startswith(BLOCKS)


def test_help_of_values_needs_nothing_else(dysharp: Call) -> None:
    for words, known in ((("routing", "import", "--format"), "sglang-recorder"), (("emulate", "--inject"), "first-touch")):
        done = dysharp(*words, "help")
        assert (done.code, done.err) == (0, "")
        assert known in done.out


def test_scope_is_said(dysharp: Call) -> None:
    text = " ".join(dysharp("--help").out.split())
    assert "on the GPUs of one NVLink domain" in text
    assert "several domains that network cards join (clusters with a [scale_out] table)" in text
    assert "Whole models: parameters, FLOPs and training memory (`dysharp model`); a training step (`dysharp step`)" in text
    assert "TTFT and TPOT (`dysharp serve`)" in text
    assert "public measurements (`dysharp validate`)" in text
    refused = dysharp("run", "deepep", "--cluster", "hw-dgx-h100", "--gpus", "16")
    assert "this cluster is one NVLink domain; a cluster with a [scale_out] table" in refused.err


def test_routing_describes_a_trace(dysharp: Call) -> None:
    found = json.loads(dysharp("routing", "deepseek-v2-lite", "--gpus", "8,32", "--json").out)
    assert (found["experts"], found["topk"], len(found["layers"])) == (64, 6, 26)
    assert list(found["imbalance"]) == list(found["distinct_gpus"]) == ["8", "32"]
    assert found["distinct_gpus"]["32"]["uniform"] == pytest.approx(5.76, abs=0.01)
    table = dysharp("routing", "deepseek-v2-lite", "--gpus", "8,16,32,64")
    assert max(map(len, table.out.splitlines())) <= 100
    assert "64 experts, top-6" in table.out


def test_routing_describes_a_distribution_for_a_model(dysharp: Call) -> None:
    done = dysharp("routing", "lognormal:0.65", "--model", "deepseek-v3", "--gpus", "8,72", "--tokens", "64")
    assert done.code == 0
    assert "256 experts -> 288 slots on 72 GPUs" in done.out


def test_a_hugging_face_config_works_like_a_name(dysharp: Call, tmp_path: Path) -> None:
    config = {"model_type": "mixtral", "hidden_size": 512, "intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4, "torch_dtype": "bfloat16"}))
    row = json.loads(dysharp("run", "deepep", *SMALL, "--model", str(tmp_path / "config.json"), "--json").out)
    assert (row["model"], row["topk"]) == (tmp_path.name, 2)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_plot_writes_one_whole_file(dysharp: Call, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"compare.{ending}"
    done = dysharp("compare", *SMALL, "--systems", "deepep,dysharp", "--plot", str(file))
    assert done.code == 0
    assert [p.name for p in tmp_path.iterdir()] == [file.name]
    first = file.read_bytes()
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    dysharp("compare", *SMALL, "--systems", "deepep,dysharp", "--plot", str(file))
    assert file.read_bytes() == first


def test_help_version_and_bare_command(dysharp: Call) -> None:
    assert dysharp("--version").out == f"dysharp {__version__}\n"
    assert dysharp().out == dysharp("--help").out
    for command in ("run", "compare", "list", "routing"):
        assert command in dysharp("--help").out
        assert dysharp(command, "--help").code == 0


def test_help_offers_what_works(dysharp: Call) -> None:
    """`trace` records one pass at burst level; figures belong to `reproduce`; a layer of drawn routing is a draw."""
    told = {name: " ".join(dysharp(name, "--help").out.split()) for name in ("trace", "run", "sweep", "reproduce")}
    assert "--direction fwd|bwd Forward" in told["trace"]
    assert "--fidelity burst Level" in told["trace"]
    assert "--direction fwd|bwd|both" in told["run"]
    assert "--fidelity burst|packet" in told["run"]
    assert "Layer of a recording, or draw of a distribution." in told["run"]
    assert "before the first table" in told["reproduce"]
    assert "before the first table" not in told["sweep"]


def test_a_named_draw_is_in_the_header(dysharp: Call) -> None:
    small = ("run", "ideal", "--gpus", "4", "--tokens", "8", "--routing", "lognormal:0.65")
    assert "lognormal sigma 0.65; recorded ones" in " ".join(dysharp(*small).err.split())
    assert "lognormal sigma 0.65, draw 3; recorded ones" in " ".join(dysharp(*small, "--layer", "3").err.split())


def commands(group: click.Group, above: str = "") -> dict[str, click.Command]:
    """Every command below a group by its words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found[f"{above} {name}".strip()] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{above} {name}".strip())
    return found


def test_every_command_has_examples_that_parse() -> None:
    known = commands(cli)
    assert set(known) - {"network"} == set(EXAMPLES)
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line.partition(">")[0])
            own = line != lines[0] or name not in ("report", "study")  # there the first command writes the input of the next
            used = name if own else words[1]
            assert words[: 1 + len(used.split())] == ["dysharp", *used.split()]
            if "help" not in words:
                known[used].make_context(used, words[1 + len(used.split()) :])
            assert line in known[name].get_help(click.Context(known[name], info_name=name, terminal_width=300, max_content_width=300))


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        (["run"], "deepep", {"deepep", "deepep-ll", "deepep-v2"}),
        (["run", "deepep", "--model"], "deepseek-v3", {"deepseek-v3", "deepseek-v3.2"}),
        (["run", "deepep", "--cluster"], "paper-nvl", {"paper-nvl72"}),
        (["compare", "--systems"], "deepep,dysharp-c", {"deepep,dysharp-comet"}),
        (["run", "deepep", "--set"], "deepep.n", {"deepep.n_sm="}),
        (["advise"], "mixtral-8x7", {"mixtral-8x7b"}),
        (["emulate", "deepep", "--inject"], "ev", {"evict"}),
        (["routing", "import", "--format"], "dee", {"deepep"}),
        (["list"], "cl", {"clusters", "cluster-keys"}),
        (["compare", "--direction"], "b", {"bwd", "both"}),
        (["trace", "deepep", "--direction"], "b", {"bwd"}),
    ],
)
def test_completion(words: list[str], last: str, found: set[str]) -> None:
    done = ShellComplete(cli, {}, "dysharp", "_DYSHARP_COMPLETE").get_completions(words, last)
    assert {item.value for item in done} == found


def test_reference_page_is_current() -> None:
    for path, text in files().items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text, f"{path}: write it anew: python -m tests.cli.reference docs"


@pytest.mark.sampled
@pytest.mark.parametrize("args", [["--help"], ["compare", "--help"], ["list", "systems"], ["list", "options"]])
def test_no_kernel_is_loaded_for_help_and_lists(args: list[str]) -> None:
    code = (
        "import sys\nfrom dysharp.cli import main\n"
        f"try: main({args!r})\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "heavy = [m for m in ('numba', 'matplotlib') if m in sys.modules]\n"
        f"heavy += [m for m in ('numpy', 'rich', 'pydantic') if m in sys.modules and {'--help' in args}]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    code = "from dysharp.cli import main; main(['list', 'options', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""
