"""Time and memory of the functional machine: `python bench/emulate.py`. One process per row, so that memory is its own."""

from __future__ import annotations

import subprocess
import sys

LARGE = "gpus=8, tokens=512, hidden=2048, expert_hidden=512, experts=64, topk=8"
CASES = {
    "tiny: 2 GPUs x 2 tokens, packets": "block='integer', gpus=2, tokens=2, hidden=64",
    "small: 4 GPUs x 8 tokens, packets, backward": "block='integer', backward=True",
    "8 GPUs x 512 tokens, hidden 2048, 64 experts top-8, bfloat16": f"block='gated', dtype='bfloat16', {LARGE}",
    "the same, float32": f"block='gated', dtype='float32', {LARGE}",
}
RUN = """
import resource, time
import dysharp as ds
from dysharp.functional.machine import Machine
spent = []
run = Machine._run
def timed(self, *args):
    begin = time.perf_counter()
    out = run(self, *args)
    spent.append(time.perf_counter() - begin)
    return out
Machine._run = timed
begin = time.perf_counter()
done = ds.emulate("dysharp", {case})
total = time.perf_counter() - begin
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(f"machine {{sum(spent):.2f}} s, with references {{total:.2f}} s, {{memory:.2f}} GB, path {{done.path}}, {{'right' if done.holds else 'WRONG'}}")
"""


def main() -> None:
    for name, case in CASES.items():
        out = subprocess.run([sys.executable, "-c", RUN.format(case=case)], capture_output=True, text=True, check=True).stdout
        print(f"{name}: {out.strip()}")


if __name__ == "__main__":
    main()
