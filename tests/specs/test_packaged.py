"""The specs that ship: the papers' numbers, converted once, each constant with its source."""

import re
import tomllib
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from dysharp import specs
from dysharp.base import units
from dysharp.base.errors import ConfigError
from dysharp.measured.trust import no_rows
from dysharp.specs import list_clusters, list_gpus, load_cluster, load_model
from dysharp.specs.fitted import conflicts_of
from dysharp.specs.gpu import load_gpu
from dysharp.specs.reading import DATA

# name: hidden, expert_hidden, experts, topk, tokens
PAPER = {
    **{f"S-{k}": (2048, 512, 64, k, 2048) for k in (8, 16, 32)},
    **{f"M-{k}": (4096, 1024, 128, k, 4096) for k in (8, 16, 32)},
    **{f"L-{k}": (7168, 2048, 256, k, 8192) for k in (8, 16, 32)},
    "paper-gpt-oss-120b": (2880, 2880, 64, 4, 4096),
    "paper-qwen3-235b": (4096, 1536, 128, 8, 4096),
}
HUB = {  # of the MoE-Hub paper; name: hidden, expert_hidden, experts, topk, layers
    "paper-mixtral-8x7b": (4096, 14336, 8, 2, 32),
    "paper-qwen2-moe": (2048, 1408, 64, 4, 24),
    "paper-phi-3.5-moe": (4096, 6400, 16, 2, 32),
}
STUDY = {"S-2": 2, "S-4": 4, "S-6": 6}  # S-8 with another topk
# name: hidden, expert_hidden, experts, topk, layers, routing
REAL = {
    "deepseek-v3": (7168, 2048, 256, 8, 58, "lognormal:0.65"),
    "deepseek-v2-lite": (2048, 1408, 64, 6, 26, "trace:deepseek-v2-lite"),
    "gpt-oss-20b": (2880, 2880, 32, 4, 24, "trace:gpt-oss-20b"),
    "gpt-oss-120b": (2880, 2880, 128, 4, 36, "lognormal:0.65"),
    "qwen3-235b": (4096, 1536, 128, 8, 94, "lognormal:0.65"),
    "mixtral-8x7b": (4096, 14336, 8, 2, 32, "lognormal:0.2"),
    "deepseek-v2": (5120, 1536, 160, 6, 59, "lognormal:0.65"),
    "kimi-k2": (7168, 2048, 384, 8, 60, "lognormal:0.65"),
    "deepseek-v3.2": (7168, 2048, 256, 8, 58, "lognormal:0.65"),
    "deepseek-v4-flash": (4096, 2048, 256, 6, 43, "lognormal:0.65"),
    "deepseek-v4-pro": (7168, 3072, 384, 6, 61, "lognormal:0.65"),
    "nemotron-3-nano": (2688, 1856, 128, 6, 23, "lognormal:0.65"),
    "nemotron-3-ultra": (2048, 5120, 512, 22, 48, "lognormal:0.65"),
    "nemotron-3-super": (1024, 2688, 512, 22, 40, "lognormal:0.65"),
    "kimi-linear-48b": (2304, 1024, 256, 8, 26, "lognormal:0.65"),
    "qwen3.5-397b": (4096, 1024, 512, 10, 60, "lognormal:0.65"),
    "qwen3-next-80b": (2048, 512, 512, 10, 48, "lognormal:0.65"),
    "glm-5": (6144, 2048, 256, 8, 75, "lognormal:0.65"),
    "minimax-m2.5": (3072, 1536, 256, 8, 62, "lognormal:0.65"),
    "mixtral-8x22b": (6144, 16384, 8, 2, 56, "lognormal:0.65"),
    "moonlight-16b": (2048, 1408, 64, 6, 26, "lognormal:0.65"),
    "pangu-pro-moe": (5120, 1344, 64, 8, 48, "lognormal:0.65"),
    "pangu-ultra-moe": (7680, 2048, 256, 8, 58, "lognormal:0.65"),
    "phi-3.5-moe": (4096, 6400, 16, 2, 32, "lognormal:0.65"),
    "qwen2-moe": (2048, 1408, 60, 4, 24, "lognormal:0.65"),
    "glm-4.5": (5120, 1536, 160, 8, 89, "lognormal:0.65"),
    "glm-4.5-air": (4096, 1408, 128, 8, 45, "lognormal:0.65"),
    "qwen3-coder-480b": (6144, 2560, 160, 8, 62, "lognormal:0.65"),
    "qwen3-30b": (2048, 768, 128, 8, 48, "lognormal:0.65"),
}
TOML_FILES = sorted(DATA.rglob("*.toml"))


def test_the_catalogue_is_complete() -> None:
    assert set(specs.list_models()) == set(PAPER) | set(HUB) | set(STUDY) | set(REAL)
    joined = [*(f"hw-dgx-{gpu}-x{n}" for gpu in ("b200", "h100", "h200") for n in (2, 4, 8)), "hw-dgx-h800-x8"]
    joined[:0] = ["hw-aws-p5-x8", "hw-aws-p6-b300-x8"]
    joined += ["hw-gb200-nvl72-x2", "hw-gb300-nvl72-x2", *(f"hw-hgx-b300-x{n}" for n in (2, 4, 8)), "hw-mi300x-x2", "hw-mi308x-x2"]
    joined += [f"hw-mi355x-x{n}" for n in (2, 4, 8)]
    joined += [*(f"paper-dgx-h100-x{n}" for n in (2, 4, 8)), *(f"paper-gh200-nvl32-x{n}" for n in (2, 4))]
    assert [name for name in specs.list_clusters() if "-x" in name] == joined
    assert [name for name in specs.list_clusters() if name not in joined] == [
        "hw-dgx-a100",
        "hw-dgx-b200",
        "hw-dgx-h100",
        "hw-dgx-h200",
        "hw-dgx-h800",
        "hw-gb200-nvl72",
        "hw-gb200-tray",
        "hw-gb300-nvl72",
        "hw-gb300-tray",
        "hw-hgx-b300",
        "hw-hgx-h20",
        "hw-mi300x",
        "hw-mi308x",
        "hw-mi325x",
        "hw-mi350x",
        "hw-mi355x",
        "hw-mi455x-helios",
        "hw-pcie-l40s",
        "hw-pcie-rtx-pro-6000",
        "hw-vr200-nvl72",
        "paper-ascend-910b",
        "paper-atlas-950",
        "paper-cais-h100",
        "paper-cais-h100-full",
        "paper-cloudmatrix384",
        "paper-dgx-h100",
        "paper-dgx-h800",
        "paper-dgx-h800-400",
        "paper-gh200-nvl32",
        "paper-gh200-nvl64",
        "paper-nvl72",
    ]


@pytest.mark.parametrize("name", STUDY)
def test_models_of_the_sizing_study(name: str) -> None:
    small, m = load_model("S-8"), load_model(name)
    assert m == replace(small, name=name, topk=STUDY[name], source=m.source)


@pytest.mark.parametrize("name", PAPER)
def test_paper_models(name: str) -> None:
    m = load_model(name)
    assert (m.hidden, m.expert_hidden, m.n_experts, m.topk, m.tokens_per_gpu) == PAPER[name]
    assert (m.name, m.n_matrices, m.element_bytes, m.gemm_dtype, m.routing) == (name, 2, 2, "fp8", "uniform")
    assert m.row_bytes == 2 * m.hidden


@pytest.mark.parametrize("name", HUB)
def test_models_of_the_moe_hub_paper(name: str) -> None:
    m = load_model(name)
    assert (m.hidden, m.expert_hidden, m.n_experts, m.topk, m.n_layers) == HUB[name]
    assert (m.n_matrices, m.row_bytes, m.gemm_dtype, m.routing) == (2, 2 * m.hidden, "bf16", "uniform")


@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str) -> None:
    m = load_model(name)
    assert (m.hidden, m.expert_hidden, m.n_experts, m.topk, m.n_layers, m.routing) == REAL[name]
    assert (m.n_matrices, m.tokens_per_gpu) == (2 if name.startswith("nemotron") else 3, 1024)


def test_deepseek_v3_is_group_limited() -> None:
    m = load_model("deepseek-v3")
    assert (m.n_group, m.topk_group) == (8, 4)


def test_the_papers_machine_in_engine_units() -> None:
    c = load_cluster("paper-gh200-nvl32")
    assert (c.n_gpus, c.n_switches, c.links_per_gpu) == (32, 9, 18)
    assert (c.link_bytes_per_us, c.link_latency_ps, c.flit_bytes) == (450_000, 250_000, 16)
    assert (c.n_vcs, c.vc_flits, c.reduction_buffer_bytes) == (8, 256, 65_536)
    assert (c.multimemq_entries, c.al_tlb_entries, c.ts_entries, c.or_entries, c.tile_rows) == ((32, 512, 1024, 1024, 128))
    assert (c.peak_flops_per_us("fp8"), c.peak_flops_per_us("bf16")) == (1_979_000_000, 989_500_000)
    assert (c.hbm_bytes_per_us, c.hbm_bytes) == (4_800_000, units.memory_to_bytes(141))
    assert not c.software_costs


def test_other_machines() -> None:
    assert load_cluster("paper-gh200-nvl64").n_switches == 18
    assert load_cluster("paper-nvl72").link_bytes_per_us == 900_000
    assert load_cluster("paper-dgx-h100").n_switches == 4
    assert load_cluster("paper-dgx-h800").link_bytes_per_us == 200_000
    assert load_cluster("paper-dgx-h800-400").link_bytes_per_us == 400_000


@pytest.mark.parametrize("path", TOML_FILES, ids=lambda p: p.name)
def test_every_constant_has_its_source(path: Path) -> None:
    if path.name in ("choices.toml", "config_names.toml", "families.toml", "fitted.toml", "numbers.toml", "validated.toml"):
        return  # there the source is a field, checked when loaded, or the file is generated
    text = path.read_text()
    words = "paper|derived|inferred|assumed|datasheet|white paper|user guide|technical brief|specification|device query|no FP|as H100"
    for line in text.splitlines():
        if line and not re.match(r"#|\[(scale_out|constants|whole|whole\.attention|whole\.linear)\]|(name|family|source|base|gpu|arch) =", line):
            assert re.search(rf"# ({words})", line), f"{path.name}: {line}"
    assert tomllib.loads(text)["name"] == path.stem


def test_with_gpus_keeps_the_machine() -> None:
    c = load_cluster("paper-gh200-nvl32")
    small = c.with_gpus(8)
    assert replace(small, n_gpus=32) == c
    assert small.with_gpus(32) == c


@pytest.mark.parametrize("n", [0, -1, 33, True, 4.0, "8"])
def test_with_gpus_refuses(n: object) -> None:
    with pytest.raises(ConfigError, match=r'cluster "paper-gh200-nvl32": found 33 GPUs, expected 1 to 32: this cluster is one NVLink domain'):
        load_cluster("paper-gh200-nvl32").with_gpus(33)
    with pytest.raises(ConfigError, match=r'cluster "paper-gh200-nvl32": found .* GPUs, expected 1 to 32'):
        load_cluster("paper-gh200-nvl32").with_gpus(n)  # type: ignore[arg-type]


def test_values_are_frozen_and_variants_checked() -> None:
    m = load_model("L-8")
    with pytest.raises(FrozenInstanceError):
        m.topk = 4  # type: ignore[misc]
    assert replace(m, topk=4).topk == 4
    with pytest.raises(ConfigError, match="topk: found 257, expected at most n_experts = 256"):
        replace(m, topk=257)


def test_unknown_dtype() -> None:
    with pytest.raises(ConfigError, match='no peak for dtype \'fp4\', expected "fp8" or "bf16"'):
        load_cluster("paper-nvl72").peak_flops_per_us("fp4")


def test_hw_clusters_name_a_gpu_and_agree_with_its_datasheet() -> None:
    names = [name for name in list_clusters() if name.startswith("hw-")]
    assert len(names) == 42
    for name in names:
        c = load_cluster(name)
        gpu = load_gpu(c.gpu)
        assert c.family == "hw"
        assert c.software_costs
        assert c.n_sms == gpu.n_sms
        assert c.link_bytes_per_us == gpu.link_GBps * 1000
        assert c.hbm_bytes_per_us == gpu.hbm_GBps * 1000
        assert (c.fp8_flops_per_us, c.bf16_flops_per_us) == (gpu.fp8_TFLOPS * 1e6, gpu.bf16_TFLOPS * 1e6)


# name: rate of all links in one direction GB/s, memory GB and GB/s, GPUs; from the vendors' announcements
COMING = {
    "hw-vr200-nvl72": (1800, 288, 22000, 72),
    "hw-mi455x-helios": (1800, 432, 19600, 72),
    "paper-cloudmatrix384": (196, 128, 3200, 384),
    "paper-atlas-950": (1000, 144, 4000, 1024),
}


@pytest.mark.parametrize("name", COMING)
def test_coming_machines_say_that_nobody_measured_them(name: str) -> None:
    c, (link, memory, rate, most) = load_cluster(name), COMING[name]
    assert (c.link_bytes_per_us / 1000, c.hbm_bytes_per_us / 1000, c.max_gpus) == (link, rate, most)
    assert c.hbm_bytes == units.memory_to_bytes(memory)
    head = (DATA / "clusters" / f"{name}.toml").read_text().split("\n\n")[0]
    assert "No rows:" in head.splitlines()[0]
    assert "Not found, and copied from" in head
    assert "no rows" in c.source or no_rows(c).startswith("no rows: ")


def test_a_rack_of_links_is_what_the_vendors_print() -> None:
    """260 TB/s for 72 GPUs and 16.3 PB/s for 8,192 NPUs, both directions."""
    for name, n, total in (("hw-vr200-nvl72", 72, 260e3), ("hw-mi455x-helios", 72, 260e3), ("paper-atlas-950", 8192, 16.3e6)):
        assert 2 * n * load_cluster(name).link_bytes_per_us / 1000 == pytest.approx(total, rel=0.01)


def test_most_of_qwen35_are_routed_experts() -> None:
    """Of its 397 billion parameters."""
    m = load_model("qwen3.5-397b")
    experts = m.n_layers * m.n_experts * m.n_matrices * m.hidden * m.expert_hidden
    assert 0.95 * 397e9 < experts < 397e9


def test_reference_licence_is_apache() -> None:
    assert "Apache License" in (Path(__file__).parents[2] / "LICENSE").read_text()


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(specs.__file__).parent / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rsplit("# ", 1)[1].strip()


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100-sxm", 81_559), ("h200-sxm", 143_771), ("b200", 183_359), ("b300", 275_040), ("gb300", 284_208), ("h20", 97_871), ("l40s", 46_068),
        ("rtx-pro-6000", 97_887),
    ],
)  # fmt: skip
def test_memory_is_what_programs_see(name: str, mib: int) -> None:
    """As nvidia-smi prints it; 288 GB of Blackwell Ultra are no GiB, and ECC takes a part of an L40S."""
    assert units.memory_to_bytes(load_gpu(name).hbm_GB) == pytest.approx(mib << 20, rel=2e-3)


@pytest.mark.parametrize("name", list_gpus())
def test_constants_of_a_gpu_lie_in_their_ranges(name: str) -> None:
    assert conflicts_of(load_gpu(name).constants) == []
