"""Parameters of small models of every architecture: ours, those that transformers builds, the difference; how many are equal.

    python bench/architectures.py [--build]

`tests/specs/architectures.json` holds {"common": fields, "cases": {model_type: [own fields, parameters]}}. `--build` builds each on the meta device
with transformers 5.23 (torch needed), counts it again and writes the file; without it the stored counts are compared, on any machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dysharp.base.errors import ConfigError
from dysharp.model.weights import parameters_of
from dysharp.specs.hf_whole import whole_from_config

FILE = Path(__file__).resolve().parents[1] / "tests" / "specs" / "architectures.json"
BUFFER = "e_score_correction_bias"
"""A bias of balancing, which some families store as a parameter; it learns nothing from gradients."""


def built(family: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """(parameters of the model that transformers builds, its config as it would be saved)."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(family, **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for name, p in model.named_parameters() if BUFFER not in name), config.to_dict()


def ours(family: str, fields: dict[str, Any]) -> int | str:
    """Our count, or the line that refuses the config."""
    try:
        return parameters_of(whole_from_config({**fields, "model_type": family}, "m", family)).total
    except ConfigError as error:
        return str(error)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true", help="count with transformers and write the file")
    build = parser.parse_args().build
    table = json.loads(FILE.read_text())
    equal = 0
    for family, case in table["cases"].items():
        fields = {**table["common"], **case[0]}
        if build:
            case[1:], saved = [(one := built(family, fields))[0]], one[1]
            if (again := ours(family, saved)) != ours(family, fields):
                print(f"{family}: the config as transformers saves it gives {again}")
        mine = ours(family, fields)
        same = mine == case[1]
        equal += same
        print(f"{family:20}{mine if isinstance(mine, int) else mine[:110]!s:>14}{case[1]:>14}{'' if same else '   DIFFERENT'}")
    print(f"{equal} of {len(table['cases'])} equal")
    if build:
        rows = ",\n".join(f"  {json.dumps(family)}: {json.dumps(case)}" for family, case in table["cases"].items())
        FILE.write_text(f'{{"common": {json.dumps(table["common"])},\n "cases": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
