"""Pairs of measured training steps that differ in a named cause: measured and predicted change. `python bench/causal_pairs.py` prints the table."""

from dysharp.measured.training.setting import TrainingRow
from dysharp.measured.training.step_time import estimate_row, measured_s

PAIRS = (
    ("tr523", "tr525", "EP overlap, Qwen3-30B, 16 H100", "communication beside computing"),
    ("tr098", "tr048", "whole graph and overlap, Qwen3-30B, 8 GB200", "no launches, overlap"),
    ("tr103", "tr052", "whole graph and overlap, Qwen3-235B, 256 GB200", "no launches, overlap"),
    ("tr089", "tr042", "whole graph, overlap, mla_up_proj for mlp, DeepSeek-V3, 256 GB200", "no launches, overlap"),
    ("tr137", "tr091", "PP 16, EP 8 to PP 8 x 2, EP 32 with overlap, DeepSeek-V3, 256 B200", "bubble, overlap, NICs"),
    ("tr258", "tr227", "alltoall to DeepEP, Qwen3-30B, 8 B200", "copies per GPU, launches"),
    ("tr251", "tr230", "BF16 to MXFP8 (and 3 chunks to 1), Qwen3-235B, 256 GB200", "GEMM rate, casts, bubble"),
    ("tr247", "tr248", "BF16 to MXFP8 (and PP 4 to 8), DeepSeek-V3, 256 GB200", "GEMM rate, casts"),
    ("tr243", "tr244", "FP8 to MXFP8, Llama3-8B, 8 GB200", "casts"),
    ("tr527", "tr528", "PP 4 to 8, Llama3-70B, 32 H100", "bubble"),
    ("tr527", "tr529", "TP 4 to 8, Llama3-70B, 32 H100", "tensor parallel collectives"),
    ("tr515", "tr516", "recompute core_attn, Moonlight-16B", "one more forward pass"),
    ("tr515", "tr517", "recompute mla_up_proj, Moonlight-16B", "one more forward pass"),
    ("tr515", "tr518", "recompute mla_up_proj, mlp, Moonlight-16B", "one more forward pass"),
    ("tr515", "tr519", "recompute moe_act, Moonlight-16B", "one more forward pass"),
    ("tr515", "tr520", "recompute layernorm, moe_act, Moonlight-16B", "one more forward pass"),
    ("tr228", "tr191", "container 26.02 to 26.02.01, Qwen3-30B, 16 H100", ""),
    ("tr216", "tr020", "container 26.02 to 26.06.01, DeepSeek-V3, 256 GB200", ""),
)
"""(first row, second row, what changed, mechanism; "": not modelled)."""
LEAST, LOW, HIGH = 3.0, 0.6, 1.6


def seconds(row: TrainingRow) -> float:
    """The measured step; from TFLOPS where a row has nothing else (any unit: pairs have one model)."""
    found = measured_s(row)
    return found or row.degree("gbs") / row.degree("gpus") / (row.numbers["tflops_gpu"] or 1.0)


def main() -> None:
    """Print every pair, then signs and sizes of those that count."""
    rows = {row.id: row for row in TrainingRow.read()}
    signs, sizes, counted = 0, 0, 0
    for first, second, cause, mechanism in PAIRS:
        measured = 100 * (seconds(rows[second]) / seconds(rows[first]) - 1)
        predicted = 100 * (estimate_row(rows[second]).step_us / estimate_row(rows[first]).step_us - 1)
        print(f"| {first}, {second} | {cause} | {mechanism or 'not modelled'} | {measured:+.1f} | {predicted:+.1f} |")
        if mechanism and abs(measured) > LEAST:
            counted += 1
            signs += measured * predicted > 0
            sizes += LOW <= predicted / measured <= HIGH
    print(f"{counted} pairs count: {signs} signs, {sizes} sizes; {sum(bool(pair[3]) for pair in PAIRS)} of {len(PAIRS)} causes are modelled")


if __name__ == "__main__":
    main()
