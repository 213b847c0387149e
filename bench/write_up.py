"""Stored answers that `dysharp reproduce --paper` shows beside the figures: the map of gains, and claims on finite hardware.

    python bench/write_up.py [NAME ...]

Writes NAME.json into docs/papers/stored: the command, the model version, and what the command printed as JSON, without its Rows.
Expected: docs/notebook/2026-11-28-write-up-expected.md.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from dysharp.base.version import MODEL_VERSION
from dysharp.figures import list_figures, load_figure
from dysharp.figures.finite import claims_of

STORED = Path(__file__).resolve().parents[1] / "docs" / "papers" / "stored"
COMMANDS = {"gain-map": "dysharp compare --map --model S-8 --gpus 32 --cluster paper-gh200-nvl32 --routing uniform --json"} | {
    f"finite-{name}": f"dysharp reproduce --finite {name} --tokens 64 --json" for name in list_figures()
    if claims_of(load_figure(name))
}  # fmt: skip


def answer_of(command: str) -> Any:
    """What a command prints, numbers with four digits behind the point, without Rows."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)  # 1: a claim has no run, and is not in the answer
    found = json.loads(done.stdout, parse_float=lambda text: round(float(text), 4))
    return {key: value for key, value in found.items() if key in ("gain_map", "sentence")} if isinstance(found, dict) else found


def main() -> None:
    STORED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or COMMANDS:
        kept = {"command": COMMANDS[name].removesuffix(" --json"), "model_version": MODEL_VERSION, "answer": answer_of(COMMANDS[name])}
        (STORED / f"{name}.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
