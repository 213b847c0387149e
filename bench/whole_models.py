"""What baselines save of a Mixtral layer, beside the one public measurement that names them all.

    python bench/whole_models.py [--json]

COMET's authors measured forward passes of whole models on eight H800 (packaged measurements, kind e2e_model_fwd; read off a bar chart,
+-2 ms). Attention and the rest of a layer are the same in all systems, so the difference from Megatron's layers, over the 32 layers of
Mixtral 8x7B, is one of MoE layers. TP1_EP8 rows: 4096 and 8192 tokens per GPU, 16 bits. No constant is fitted to these rows.

A line: what a system saves per layer against Megatron with Transformer Engine (`megatron-a2a`), measured and predicted, in us.
"""

from __future__ import annotations

import json
import sys

import dysharp
from dysharp.base.text import table
from dysharp.measured.measurements import read_measurements

KIND, PARALLEL, REFERENCE = "e2e_model_fwd", "TP1_EP8", "Megatron-TE"
LAYERS = 32
READING_US = 2 * 2000 / LAYERS
"""Of a difference of two bars, each read to 2 ms."""
AS = {"FasterMoE": "fastermoe", "Tutel": "tutel", "Comet": "comet-flux"}
OPTIONS = {"comet-flux.mediation": True}
"""comet-flux has no real form; its mediation is charged."""


def measured_us(tokens: int) -> dict[str, float]:
    """{name in the chart: time of a forward pass over the layers, in us}."""
    rows = [m for m in read_measurements() if m.kind == KIND and m.config["parallel"] == PARALLEL and m.config["M"] == tokens]
    return {m.system: m.value * m.us_per_unit / LAYERS for m in rows if m.value is not None and "Mixtral" in m.config["model"]}


def predicted_us(tokens: int) -> dict[str, float]:
    """{system: time of a MoE layer, in us}."""
    names = ["megatron-a2a", *AS.values(), "comet"]
    rows = dysharp.compare(names, model="mixtral-8x7b", cluster="hw-dgx-h800", tokens=tokens, routing="uniform", options=OPTIONS).rows
    return {row.system: row.layer_us for row in rows}


def lines(tokens: int) -> list[tuple[int, str, float | None, float]]:
    """(tokens, system, measured saving, predicted saving) in us of a layer."""
    measured, predicted = measured_us(tokens), predicted_us(tokens)
    names = {system: name for name, system in AS.items()}
    saved = {name: measured[REFERENCE] - us for name, us in measured.items()}
    base = predicted["megatron-a2a"]
    return [(tokens, system, saved.get(names.get(system, "")), base - us) for system, us in predicted.items() if system != "megatron-a2a"]


def main() -> None:
    found = [line for tokens in (4096, 8192) for line in lines(tokens)]
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
        return
    cells = [(str(n), system, "-" if us is None else f"{us:.0f}", f"{ours:.0f}") for n, system, us, ours in found]
    print(table(("tokens per GPU", "system", "saved us, measured", "predicted"), cells, left=2))
    print(f"A measured difference is read to +-{READING_US:.0f} us.")


if __name__ == "__main__":
    main()
