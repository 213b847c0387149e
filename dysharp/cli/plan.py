"""`dysharp plan`."""

from __future__ import annotations

import click

from dysharp.cli.flags import complete_clusters, json_flag
from dysharp.cli.output import print_header, print_json

TRY_HELP = (
    "Values of a dimension: tp, pp, vpp, ep, etp, cp, mbs; recompute (none, or modules joined with +), schedule (1f1b, zb-h1), "
    "overlap (none, pair), system (flat, hierarchical, dedup, in-switch, moe-hub). Repeatable."
)


@click.command()
@click.argument("models", metavar="MODEL|FILE,...")
@click.option("--gpus", type=click.IntRange(1, 1 << 20), required=True, metavar="N", help="GPUs of the whole step.")
@click.option(
    "--cluster", default="hw-dgx-h100-x8", show_default=True, metavar="NAME|FILE", shell_complete=complete_clusters,
    help="The machine; more domains are more of the same.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1 << 24), metavar="N", help="Sequences of a step.  [default: one per GPU]")
@click.option("--sequence", type=click.IntRange(1, 1 << 24), default=4096, show_default=True, metavar="S", help="Tokens of a sequence.")
@click.option("--precision", default="bf16", show_default=True, metavar="RECIPE", help="Bytes of weights, gradients and optimizer (`dysharp model`).")
@click.option(
    "--imbalance", type=click.FloatRange(1, 100), default=1.0, show_default=True, metavar="F", help="Rows of the fullest rank over the mean."
)
@click.option("--try", "tries", multiple=True, metavar="KEY=V1,V2", help=TRY_HELP)
@click.option("--vary", multiple=True, metavar="KEY=V1,V2", help="Shapes: layers, hidden, n_experts, topk, expert_hidden. Repeatable.")
@click.option("--best", "n_best", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="Layouts to show.")
@click.option("--check", metavar="LAYOUT", help="Judge a layout that runs already: tp=8,pp=16,... with stages= last.")
@json_flag
def plan(
    models: str, gpus: int, cluster: str, batch: int | None, sequence: int, precision: str, imbalance: float, tries: tuple[str, ...],
    vary: tuple[str, ...], n_best: int, check: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Find the layouts, and of several MODELs the shape, that train fastest on N GPUs: tokens/s per GPU, MFU, memory, what limits each.

    All candidates are counted: kept, pruned by a bound, or rejected by a constraint. Times are closed forms: read ranks, not times.
    """
    from dysharp.api.planning import plan as make
    from dysharp.cli.texts.plan_text import print_check, print_plan

    done = make(
        models, gpus, cluster, batch=batch, sequence=sequence, precision=precision, imbalance=imbalance, tries=tries, vary=vary, n_best=n_best,
        check=check,
    )  # fmt: skip
    if as_json:
        print_json(done.to_dict())
    elif check is not None:
        print_check(done)
    else:
        print_plan(done)
    print_header(done.header)
