"""`dysharp plan`."""

from typing import Any

import click

from dysharp.cli.flags import complete_clusters, complete_words, jobs_flag, json_flag, plot_flag, precision_flag
from dysharp.cli.kept import fresh_flag, kept_rows
from dysharp.show.output import print_answer, print_header

TRY_HELP = (
    "Values of a dimension: tp, pp, vpp, ep, etp, cp, mbs; recompute and swap (none, or modules joined with +), weights (whole, sharded), "
    "schedule (1f1b, zb-h1, zbv, v-half, v-min, dualpipe, dualpipev), overlap (none, pair), "
    "system (alltoall, deepep, hybrid-ep; flat, hierarchical, dedup, in-switch, moe-hub). Repeatable."
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
@precision_flag
@click.option("--spread", type=click.FloatRange(0, 1), metavar="CV", help="Spread of expert loads over their mean.  [default: 0.256]")
@click.option("--imbalance", type=click.FloatRange(1, 100), metavar="F", help="Rows of the hottest rank over the mean, in place of --spread.")
@click.option("--try", "tries", multiple=True, metavar="KEY=V1,V2", help=TRY_HELP)
@click.option(
    "--vary", multiple=True, metavar="KEY=V1,V2",
    help="Shapes: layers, hidden, n_experts, topk, expert_hidden, shared_hidden, dense_hidden, heads, kv_heads, vocab, mtp. Repeatable.",
)  # fmt: skip
@click.option("--best", "n_best", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="Layouts to show.")
@click.option("--check", metavar="LAYOUT", help="Judge a layout that runs already: tp=8,pp=16,... with stages= last.")
@click.option("--what-if", is_flag=True, help="Also the best with DySHARP-class switches and with MoE-Hub.")
@click.option("--rows", type=click.IntRange(0, 100), default=0, metavar="N", help="Rank the best N again by simulated Rows of their experts.")
@click.option("--confirm", "confirmed", is_flag=True, help="Replay the schedule of the best, and merge its passes in one Program.")
@click.option("--sensitivity", "sensitive", is_flag=True, help="Search again with every constant 20 % lower and higher.")
@click.option("--serve", "serve_slo", metavar="SLO", help="Also how every shape serves on one domain, such as ttft=2s,tpot=50ms.")
@click.option(
    "--arguments", metavar="FRAMEWORK", type=click.Choice(["megatron-lm", "megatron-bridge", "mindspeed"]),
    shell_complete=complete_words("megatron-lm", "megatron-bridge", "mindspeed"),
    help="Print the best layout, or that of --check, for megatron-lm, megatron-bridge or mindspeed, to paste.",
)  # fmt: skip
@click.option("--folder", metavar="DIR", help="Keep costs there: the same command goes on where a killed search was.")
@jobs_flag("Processes for several shapes.")
@click.option("--scheduler", default="", metavar="ADDRESS", help="Search shapes on the workers of this dask scheduler.")
@plot_flag("throughput over layouts, memory of every rank, and one step (.svg, .png)")
@fresh_flag
@json_flag
def plan(models: str, check: str | None, arguments: str | None, plot: str | None, fresh: bool, as_json: bool, **asked: Any) -> None:
    """Find the layouts that train fastest on N GPUs, and the fastest of several MODELs: tokens/s per GPU, MFU, memory, what limits each.

    All candidates are counted: kept, pruned by a bound, or rejected by a constraint. The answer says what its times stand on.
    """
    from dysharp.api.planning import plan as make
    from dysharp.cli.progress_bar import bar
    from dysharp.cli.texts.plan_text import draw_plan, print_arguments, print_check, print_plan

    if asked["spread"] is None:
        del asked["spread"]
    with kept_rows(fresh), bar("searched") as tick:
        done = make(models, check=check, tick=tick, **asked)
    if plot is not None:
        draw_plan(done, plot)
    if as_json:
        print_answer(done.to_dict() | ({"arguments": done.arguments(arguments)} if arguments else {}))
    elif arguments is not None:
        print_arguments(done, arguments)
    elif check is not None:
        print_check(done)
    else:
        print_plan(done)
    print_header(done.header)
