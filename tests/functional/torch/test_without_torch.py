"""What works without the extra. Runs with and without torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
for name in ("torch", "transformers"):
    sys.modules[name] = None
import dysharp
from dysharp.base.errors import ConfigError
from dysharp.functional.torch import BLOCKS, make_block, wrap
print(*sorted(BLOCKS))
for call in (lambda: make_block("mixtral", hidden=16, expert_hidden=8, n_experts=4, topk=2), lambda: wrap(None, None)):
    try:
        call()
    except ConfigError as error:
        print(error)
"""


def test_import_names_and_one_clear_error() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    line = "found no torch, expected the extra: pip install 'dysharp[torch]'"
    assert done.stdout.splitlines() == ["deepseek-v3 gpt-oss mixtral qwen3-moe", line, line]
