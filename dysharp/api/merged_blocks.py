"""`--blocks merged`: MoE blocks of a step as merged Programs, one for each system and kind of attention."""

from collections.abc import Sequence
from typing import Unpack

from dysharp.analysis import Row
from dysharp.base import ConfigError
from dysharp.runs import RequestArgs, takes
from dysharp.runs.run import planned, program_us
from dysharp.training import Block, BlockTimes, EpTimes, Kind, moe_kinds
from dysharp.training.merged import block_kernels, block_times


@takes(RequestArgs)
def merged_blocks(rows: Sequence[Row], eps: Sequence[EpTimes], block: Block, **request: Unpack[RequestArgs]) -> list[dict[Kind, BlockTimes]]:
    """Times of blocks by kind, for the system and options of each Row. They run anew each time.

    `rows`: of forward passes; `eps`: with their backward passes.

    Raises ConfigError for a Row of leading tokens, and for a system whose Programs cannot run one behind the other.
    """
    kinds, found = moe_kinds(block), []
    for row, ep in zip(rows, eps, strict=True):
        if row.window:
            raise ConfigError(f"blocks: {row.system}: found a layer estimated from leading tokens, expected all tokens: merged Programs do not scale")
        forward, backward = planned(row.system, ("fwd", "bwd"), row.options, **request)
        held = int(row.options.get("n_sm", 0)) if row.form == "real" else 0
        found.append({kind: block_times(forward, backward, block_kernels(block, n, ep), program_us, held) for kind, n in kinds.items()})
    return found
