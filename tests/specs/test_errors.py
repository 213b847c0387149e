"""Wording of errors: one line with what was found, what was expected, where, and the nearest valid name."""

import os
import pickle
from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError, DysharpError, MissingExtra, SimulationError, nearest
from dysharp.base.reading import MAX_FILE_BYTES
from dysharp.specs import load_cluster, load_model

MODEL = """
name = "mine"
hidden = 1024
expert_hidden = 512
n_experts = 16
topk = 2
tokens_per_gpu = 128
n_matrices = 3
element_bytes = 2
gemm_dtype = "bf16"
"""


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str | bytes, name: str = "spec.toml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def model_error(path: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(path)  # type: ignore[arg-type]
    return one_line(caught.value)


def cluster_error(path: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)  # type: ignore[arg-type]
    return one_line(caught.value)


def one_line(error: DysharpError) -> str:
    text = str(error)
    assert text.isprintable(), text
    assert len(text) < 5000
    return text


def test_exit_codes_and_pickling() -> None:
    assert (ConfigError("x").exit_code, SimulationError("x").exit_code) == (2, 1)
    assert str(ConfigError("a\nb\u2028\ud800")) == r"a\nb\u2028\ud800"
    again = pickle.loads(pickle.dumps(SimulationError("deadlock")))
    assert (type(again), str(again)) == (SimulationError, "deadlock")
    extra = MissingExtra.needs("emulate", "hf")
    assert (str(extra), extra.exit_code) == (
        "emulate needs the extra \"hf\": pip install 'dysharp[hf]'",
        2,
    )


def test_nearest() -> None:
    assert nearest("deepsek", ["deepseek", "mixtral"]) == '; did you mean "deepseek"?'
    assert nearest("l-8", ["L-8", "S-8"]) == '; did you mean "L-8"?'
    assert nearest("paper", ["hw-a", "paper-a-long-name"]) == '; did you mean "paper-a-long-name"?'
    assert nearest("zzz", ["b", "a"]) == "; expected one of a, b"
    assert nearest("x", []) == "; there is none"


def test_a_users_model(write) -> None:  # type: ignore[no-untyped-def]
    m = load_model(write(MODEL))
    assert (m.name, m.n_group, m.n_layers, m.routing) == ("mine", 1, 1, "uniform")
    assert load_model(str(write("\ufeff" + MODEL))) == m  # a byte-order mark is harmless


def test_all_problems_in_one_line(write) -> None:  # type: ignore[no-untyped-def]
    text = MODEL.replace("hidden = 1024", 'hiden = 1024\nn_layers = "2"').replace("topk = 2", "topk = 0")
    path = write(text)
    assert model_error(path) == (
        f"{path}: hidden: missing | topk: found 0, expected greater than or equal to 1 | "
        "n_layers: found '2', expected a valid integer | hiden: unknown key; did you mean \"hidden\"?"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("topk = 2", "topk = 17", "topk: found 17, expected at most n_experts = 16"),
        ("topk = 2", "topk = 2.0", "topk: found 2.0, expected a valid integer"),
        ("topk = 2", "topk = true", "topk: found True, expected a valid integer"),
        ("hidden = 1024", "hidden = 2097152", "hidden: found 2097152, expected less than"),
        ("n_matrices = 3", "n_matrices = 4", "n_matrices: found 4, expected 2 (plain) or 3 (gated)"),
        ("element_bytes = 2", "element_bytes = 3", "element_bytes: found 3, expected 1, 2 or 4"),
        ('"bf16"', '"fp16"', "gemm_dtype: found 'fp16', expected fp8 or bf16"),
        ("tokens_per_gpu = 128", "tokens_per_gpu = 0", "tokens_per_gpu: found 0, expected greater"),
        ("topk = 2", "topk = 2\nn_group = 3", "n_group: found 3, expected a divisor of n_experts = 16"),
        ("topk = 2", "topk = 2\ntopk_group = 2", "topk_group: found 2, expected at most n_group = 1"),
        ("topk = 2", "topk = 3\nn_group = 8", "topk: found 3, expected at most 2, the experts of 1 groups"),
        ("topk = 2", 'topk = 2\nrouting = ""', 'routing: found "", expected a routing such as "uniform"'),
        ('"mine"', '"my\\nmodel"', r"name: found 'my\nmodel', expected text that matches"),
        ('"mine"', '""', "name: found '', expected"),
    ],
)
def test_bad_values(write, old: str, new: str, message: str) -> None:  # type: ignore[no-untyped-def]
    path = write(MODEL.replace(old, new))
    text = model_error(path)
    assert text.startswith(f"{path}: ")
    assert message in text


def test_names_that_are_not_known() -> None:
    assert model_error("deepsek-v3") == (
        "unknown model 'deepsek-v3', expected a packaged name, a .toml file or a Hugging Face config.json; "
        'did you mean "deepseek-v3"?'
    )
    assert cluster_error("paper-gh200") == (
        "unknown cluster 'paper-gh200', expected a packaged name or a .toml file; "
        'did you mean "paper-gh200-nvl32"?'
    )
    assert "found None, expected a name or a path" in model_error(None)


def test_a_variant_of_a_packaged_cluster(write) -> None:  # type: ignore[no-untyped-def]
    base = 'base = "paper-gh200-nvl32"\n'
    c = load_cluster(write(base + 'name = "slow"\nlink_GBps = 100.5'))
    assert (c.name, c.link_bytes_per_us, c.n_switches) == ("slow", 100_500, 9)
    assert c.source.startswith("variant of paper-gh200-nvl32")
    path = write(base + 'name = "slow"\nlink_MBps = 100\nlink_latency_us = 1\nlink_GBps = nan')
    assert cluster_error(path) == (
        f"{path}: link_GBps: found nan, expected a finite number | "
        'link_MBps: unknown key; did you mean "link_GBps"? | '
        'link_latency_us: unknown key; did you mean "link_latency_ns"?'
    )
    assert "name: missing" in cluster_error(write(base))
    hw = write(base + 'name = "x"\nfamily = "hw"')
    assert "gpu: found '', expected one of a100-pcie, a100-sxm, b200," in cluster_error(hw)


def test_cluster_rules_between_fields(write) -> None:  # type: ignore[no-untyped-def]
    path = write('base = "paper-gh200-nvl32"\nname = "x"\nn_gpus = 64\nlinks_per_gpu = 4\nflit_bytes = 24')
    assert cluster_error(path) == (
        f"{path}: cluster 'x': n_gpus: found 64, expected at most max_gpus = 32 | "
        "links_per_gpu: found 4, expected at least n_switches = 9 | "
        "flit_bytes: found 24, expected a power of two"
    )


def test_a_reduction_table_of_less_than_one_sum_is_refused(write) -> None:  # type: ignore[no-untyped-def]
    base = 'base = "paper-gh200-nvl32"\nname = "x"\nreduction_buffer_KiB = '
    path = write(base + "0.125")
    assert cluster_error(path) == f"{path}: cluster 'x': reduction_buffer_KiB: found 0.125, expected 0, or at least 0.25 (one FP32 sum)"
    assert load_cluster(write(base + "0")).reduction_buffer_bytes == 0
    assert load_cluster(write(base + "0.25")).reduction_buffer_bytes == 256


def test_bases(write) -> None:  # type: ignore[no-untyped-def]
    assert load_model(write('base = "deepseek-v3"\nname = "v3-top4"\ntopk = 4')).n_layers == 58
    assert "base: found 'deepseek-v4', expected a packaged name; did you mean" in model_error(
        write('base = "deepseek-v4"\nname = "x"')
    )
    assert "base: found ['a'], expected a packaged name" in model_error(write('base = ["a"]'))
    assert "base: found '../models/L-8'" in model_error(write('base = "../models/L-8"'))


def test_malformed_files_name_line_and_column(write) -> None:  # type: ignore[no-untyped-def]
    assert "malformed TOML: Expected '=' after a key" in model_error(write("a = 1\nb"))
    assert "(at line 2, column 9, the end)" in model_error(write('a = 1\nb = "abc'))
    assert "line 2 column 6: found byte 0xff, expected UTF-8 text" in model_error(write(b'a=1\nb = "\xff"'))
    assert "Expecting value (at line 2, column 5)" in model_error(write('{\n"a":', "config.json"))
    assert "found [1], expected a JSON object" in model_error(write("[1]", "config.json"))
    assert "nested too deeply" in model_error(write("[" * 200_000, "config.json"))
    assert "line 2: found a number of more than 300 digits" in model_error(write('{\n"a": ' + "9" * 301 + "}", "config.json"))
    assert "found an integer of more than 300 digits" in model_error(write(MODEL.replace("topk = 2", "topk = 0x" + "f" * 5000)))
    assert "nested deeper than 100" in model_error(write("a." * 1000 + "a = 1"))
    assert "and 80 more" in model_error(write(MODEL + "".join(f"k{i} = 1\n" for i in range(100))))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file or directory" in model_error(tmp_path / "none.toml")
    assert "cannot be read: No such file or directory" in model_error(tmp_path)  # no config.json in it
    assert "cannot be read" in cluster_error(tmp_path)
    assert r"a\x00.toml: cannot be read" in model_error("a\0.toml")
    assert "unknown model" in model_error("a" * 5000)
    big = tmp_path / "big.toml"
    with big.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert f"found {MAX_FILE_BYTES + 1} bytes, expected at most {MAX_FILE_BYTES}" in model_error(big)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    assert "not a regular file" in model_error(pipe)
