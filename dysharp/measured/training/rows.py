"""Training runs from a CSV, the packaged one or a file: one line per run, the columns of `COLUMNS`."""

import os
from dataclasses import dataclass

from dysharp.measured.run_rows import Columns, Run

COLUMNS = Columns(
    "training",
    texts=("id", "source", "model", "hardware", "precision", "recompute", "dispatcher", "software", "routing", "check", "note"),
    degrees=("gpus", "gbs", "mbs", "seq", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "fsdp", "ga", "layers"),
    numbers=("tok_s_gpu", "tflops_gpu", "step_s", "mem_gib"),
    required=("id", "model", "hardware", "gpus", "precision", "gbs", "mbs", "seq", "tp", "pp", "ep", "dp"),
)


@dataclass(frozen=True, slots=True)
class TrainingRow(Run):
    """One measured run of training."""


def is_training(text: str) -> bool:
    """Whether the header of a CSV has the columns of training runs."""
    return COLUMNS.fit(text)


def read_training(path: str | os.PathLike[str] | None = None) -> list[TrainingRow]:
    """All runs of a CSV file; None: the packaged table (`Run.read`)."""
    return TrainingRow.read(path, COLUMNS)


def training_from_csv(text: str, where: str) -> list[TrainingRow]:
    """Runs from CSV text (`Run.from_csv`)."""
    return TrainingRow.from_csv(text, where, COLUMNS)
