"""Lines of a CSV of measurements, and what they are read as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dysharp.api.measuring import write_rows
from dysharp.measured.measurements import COLUMNS, Measurement, measurements_from_csv

HEADER = ",".join(COLUMNS)
GEMM = {"dtype": "bfloat16", "k": 4096, "kernel": "torch.nn.functional.linear", "m": 1024, "n": 4096, "timing": "cuda graph"}
NORMAL = {"dtype": "fp8_e4m3+fp32 scale/128", "ep": 8, "experts": 64, "hidden": 512, "nodes": 1, "sms": 8, "topk": 4}
VLLM, TRTLLM = "vLLM custom allreduce (CUDA graph)", "TRTLLM one/two-shot allreduce"
H100, GB200 = "8xH100-SXM (NVLink4 NVSwitch)", "4xGB200 tray (NVLink5, NVL72)"


def line(
    id_: str = "a-1",
    *,
    kind: str = "gemm_dense",
    system: str = "vLLM linear",
    hardware: str = "H100-SXM",
    config: object = None,
    metric: str = "latency",
    value: object = 43.0,
    unit: str = "us",
) -> str:
    """One measurement, by default of a dense GEMM; `config`: a text, or what is written as JSON."""
    text = config if isinstance(config, str) else json.dumps(GEMM if config is None else config)
    quoted = '"' + text.replace('"', '""') + '"'
    return f'{id_},{kind},"{system}","{hardware}",{quoted},{metric},{value},{unit},a source'


def ep_line(id_: str, tokens: int, *, kind: str = "ep_dispatch", system: str = "DeepEP-normal", **config: object) -> str:
    """One kernel of DeepEP on 8 H100."""
    dtype = {"dtype": "bf16"} if kind == "ep_combine" else {}
    return line(id_, kind=kind, system=system, hardware="8xH100", config=NORMAL | dtype | {"tokens_per_rank": tokens} | config, value=50)


def allreduce_line(system: str, hardware: str = H100, *, id_: str = "a-1", **config: object) -> str:
    """One all-reduce of 8 GPUs beside NCCL's."""
    config = {"gpus": 8, "dtype": "bf16"} | config
    return line(id_, kind="custom_allreduce", system=system, hardware=hardware, config=config, value=10)


def read(*lines: str) -> list[Measurement]:
    """Lines without their header as measurements."""
    return measurements_from_csv("\n".join([HEADER, *lines]) + "\n", "m.csv")


def some_gemms() -> list[Measurement]:
    """Nine GEMMs of three shapes."""
    sizes = [(m, n) for m in (512, 2048, 8192) for n in (2048, 4096, 8192)]
    lines = [line(f"g-{m}-{n}", config=GEMM | {"m": m, "n": n}, value=2 * m * n * 4096 / 8e8 + 5) for m, n in sizes]
    return read(*lines)


def write(folder: Path, *lines: str) -> Path:
    """A CSV of lines, by default of two GEMMs."""
    path = folder / "m.csv"
    two = [line(), line("a-2", config=GEMM | {"m": 2048}, value=87.0)]
    path.write_text("\n".join([HEADER, *(lines or two)]) + "\n")
    return path


class Measured(NamedTuple):
    """What `dysharp measure` finds: one number."""

    kind: str
    system: str
    config: dict[str, Any]
    metric: str
    value: float
    unit: str


def write_own(path: Path, rows: list[Measured], hardware: str, source: str) -> None:
    """Rows as `dysharp measure` writes them."""
    numbered = enumerate(rows, start=1)
    write_rows(path, [Measurement(f"mine-{n:04}", r.kind, r.system, hardware, *r[2:], source) for n, r in numbered])


def changed(config: dict[str, Any], **values: object) -> dict[str, Any]:
    """`config` with other values; None removes a key."""
    return {key: value for key, value in (config | values).items() if value is not None}
