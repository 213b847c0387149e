"""Serving runs from a CSV, the packaged one or a file: one line per run, the columns of `COLUMNS`."""

import os
import re
from dataclasses import dataclass

from dysharp.measured.run_rows import Columns, Run

COLUMNS = Columns(
    "serving",
    texts=(
        "id", "source", "where", "quality", "engine", "engine_version", "model", "hardware", "mode", "precision", "gemm_quant", "moe_quant",
        "measured", "spec_decode", "note",
    ),
    degrees=(
        "gpus", "isl", "osl", "concurrency", "batch", "tp", "pp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "p_moe_tp",
        "p_moe_ep", "d_workers", "d_tp", "d_attn_dp", "d_moe_tp", "d_moe_ep",
    ),
    numbers=("ttft_ms", "tpot_ms", "out_tok_s_gpu", "in_tok_s_gpu"),
    required=("id", "engine", "model", "hardware", "mode", "isl", "osl", "concurrency", "tp", "tpot_ms"),
)  # fmt: skip
STEPS = ("decode only", "prefill only")
"""Modes of rows that measure steps without a scheduler: tokens per second of a GPU with `batch` requests (tokens of prompts) on each."""
MODES = ("agg", "disagg", *STEPS)
"""Prefill and decode on the same GPUs, apart, and one of them alone."""


@dataclass(frozen=True, slots=True)
class ServingRow(Run):
    """One measured run of serving."""

    @classmethod
    def modelled(cls, cells: dict[str, str]) -> bool:
        """Whether the mode of a row is known."""
        return cells["mode"] in MODES

    @property
    def step_ms(self) -> float | None:
        """Time of a step, measured; with drafts, of all tokens that it accepts."""
        rate = self.numbers["out_tok_s_gpu" if self.text("mode") == STEPS[0] else "in_tok_s_gpu"]
        if self.text("mode") not in STEPS or not rate or not self.degrees["batch"]:
            return None
        return self.degrees["batch"] * (1 + self.acceptance) / rate * 1e3

    @property
    def drafts(self) -> int:
        """Drafts of a step and request, where a row says so ("MTP 1"), else 0."""
        found = re.search(r"(?:MTP|EAGLE)[ -]?(\d)(?!\d| ?%)", self.text("spec_decode"), re.IGNORECASE)
        return int(found[1]) if found else 0

    @property
    def acceptance(self) -> float:
        """Part of drafts that a row with one draft says are accepted; 0 without drafts."""
        found = re.search(r"MTP (\d+) % acceptance", self.text("spec_decode"))
        return int(found[1]) / 100 if found else 0.0


def is_serving(text: str) -> bool:
    """Whether the header of a CSV has the columns of serving runs."""
    return COLUMNS.fit(text)


def read_serving(path: str | os.PathLike[str] | None = None) -> list[ServingRow]:
    """All runs of a CSV file; None: the packaged table (`Run.read`)."""
    return ServingRow.read(path, COLUMNS)


def serving_from_csv(text: str, where: str) -> list[ServingRow]:
    """Runs from CSV text (`Run.from_csv`)."""
    return ServingRow.from_csv(text, where, COLUMNS)
