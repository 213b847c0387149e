"""`paper-nvl72,link_GBps=900`: a packaged cluster with other values of some keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import load_cluster


def test_keys_replace_those_of_the_base() -> None:
    base, other = load_cluster("paper-nvl72"), load_cluster("paper-nvl72,link_GBps=1800,al_tlb_entries=4096")
    assert (other.link_bytes_per_us, other.al_tlb_entries) == (1_800_000, 4096)
    assert (other.n_gpus, other.n_switches, other.family) == (base.n_gpus, base.n_switches, base.family)
    assert other.name == "paper-nvl72+link_GBps-1800+al_tlb_entries-4096"
    assert other.source.startswith("variant of paper-nvl72")


@pytest.mark.parametrize("name", ["paper-gh200-nvl32", "hw-dgx-h100"])
def test_more_sms_bring_their_flops(name: str) -> None:
    base, twice = load_cluster(name), load_cluster(f"{name},n_sms=264")
    assert (base.n_sms, twice.n_sms, twice.hbm_bytes_per_us) == (132, 264, base.hbm_bytes_per_us)
    assert (twice.fp8_flops_per_us, twice.bf16_flops_per_us) == (2 * base.fp8_flops_per_us, 2 * base.bf16_flops_per_us)
    named = load_cluster(f"{name},n_sms=264,fp8_TFLOPS=1000")
    assert (named.fp8_flops_per_us, named.bf16_flops_per_us) == (1_000_000_000, base.bf16_flops_per_us)


def test_another_gpu_brings_its_own_numbers() -> None:
    """Its constants beside the peaks of another would be a machine that nobody sells. What the text gives stays."""
    b200, other = load_cluster("hw-dgx-b200"), load_cluster("hw-dgx-h100,gpu=b200,hbm_GB=192")
    for name in ("n_sms", "fp8_flops_per_us", "bf16_flops_per_us", "hbm_bytes_per_us", "link_bytes_per_us"):
        assert getattr(other, name) == getattr(b200, name)
    assert (other.own_gpu.fp4_TFLOPS, other.own_gpu.hbm_GB) == (b200.own_gpu.fp4_TFLOPS, 192)
    assert load_cluster("hw-dgx-h100,gpu=b200,n_sms=74").bf16_flops_per_us == b200.bf16_flops_per_us / 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paper-nvl72,link_GBp=900", 'link_GBp: unknown key; did you mean "link_GBps"?'),
        ("hw-dgx-h100-x2,nic_GBps=100", 'nic_GBps: unknown key; did you mean "scale_out.nic_GBps"?'),
        ("hw-dgx-h100-x2,scaleout.nic_GBps=100", 'unknown key; did you mean "scale_out.nic_GBps"?'),
        ("paper-nvl72,link_GBps=fast", "link_GBps: found 'fast'"),
        ("paper-nvl72,link_GBps", "found 'link_GBps', expected key=value with a key of a cluster file"),
        ("paper-nvl72,name=x", "found 'name=x', expected key=value"),
        ("paper-nvl72,n_sms=8,n_sms=9", "found n_sms twice, expected it once"),
        ("paper-nvl73,n_sms=8", "found 'paper-nvl73' before the keys, expected a packaged cluster; did you mean"),
    ],
)
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_cluster(text)
    assert message in str(error.value)
    assert text.split(",", maxsplit=1)[0] in str(error.value)


def test_a_file_takes_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "paper-nvl72"\nname = "mine"\n')
    with pytest.raises(ConfigError, match="expected a packaged cluster; write the keys into the file"):
        load_cluster(f"{path},n_sms=8")
