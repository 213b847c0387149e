"""Rows of a table of tensor-parallel measurements."""

import pytest

from dysharp.base.errors import ConfigError
from dysharp.measured.family import classify
from dysharp.measured.measurements import measurements_from_csv
from dysharp.measured.tp_rows import COLUMNS

HEAD = ",".join(COLUMNS)
LINE = "t{i},some@1,f.csv,{op},{how},yes,8xH100 (DGX),8,4096x8192,67108864,bf16,{ctas},time,{us},us,,"


def text(*rows: tuple[str, str, str, float]) -> str:
    return "\n".join([HEAD, *(LINE.format(i=i, op=op, how=how, ctas=ctas, us=us) for i, (op, how, ctas, us) in enumerate(rows))])


def test_ops_become_kinds_with_their_bytes_and_blocks() -> None:
    rows = (("all_gather", "multimem", "16", 189.0), ("RMSNorm on 1/8 of the tokens", "local", "", 18.6), ("MoE layer0", "Flux", "", 1.0))
    found = measurements_from_csv(text(*rows), "here")
    assert [m.kind for m in found] == ["multimem_all_gather", "rms_norm", "MoE layer0"]
    assert [m.config["bytes"] for m in found] == [67108864, 8388608, 67108864]
    assert found[0].config["ctas"] == 16
    assert {m.metric for m in found} == {"latency"}


def test_norms_have_a_prediction_and_other_ops_none() -> None:
    rows = (("RMSNorm full", "local", "", 96.3), ("all_reduce + add + RMSNorm fused", "TokenWeave", "", 258.2), ("MoE layer0", "Flux", "", 1.0))
    done = classify(measurements_from_csv(text(*rows), "here"))
    assert [entry.family.name for entry in done.parsed] == ["fused-norm", "fused-norm"]
    alone, fused = done.parsed
    assert alone.family.program_us(alone.case, {"hbm.fraction": 0.88, "gpu.kernel_us": 2.4}) == pytest.approx(
        2 * 2.4 + 4 * 67.108864 / 3.35 / 0.88,
        rel=1e-3,  # two events take one start, the kernel another
    )
    assert fused.case.effort() > alone.case.effort()


def test_a_bad_row_is_refused_by_its_place() -> None:
    with pytest.raises(ConfigError, match="here: row 1: column value"):
        measurements_from_csv(text(("all_gather", "multimem", "16", float("nan"))), "here")
