"""`dysharp serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.cli.flags import complete_clusters, complete_routings, complete_systems, complete_words, json_flag, plot_flag, precision_flag, words_of
from dysharp.cli.model import complete_whole
from dysharp.cli.report import command_line, report_flag
from dysharp.show.output import print_answer, print_header, print_lines, print_table

if TYPE_CHECKING:
    from dysharp.api.serving_answer import Serving


@click.command()
@click.argument("model", metavar="MODEL|FILE", shell_complete=complete_whole)
@click.option("--cluster", metavar="NAME|FILE", default="hw-dgx-h200", show_default=True, shell_complete=complete_clusters, help="The machine.")
@click.option("--gpus", type=int, metavar="N", help="GPUs in use.  [default: all of the cluster]")
@click.option("--isl", type=int, default=4096, show_default=True, metavar="N", help="Tokens of a prompt (mean).")
@click.option("--osl", type=int, default=1024, show_default=True, metavar="N", help="Tokens of an answer (mean).")
@click.option(
    "--engine", default="vllm", show_default=True, metavar="NAME", shell_complete=complete_words("vllm", "sglang", "trtllm"),
    help="Whose rules put requests into steps: vllm, sglang or trtllm.",
)  # fmt: skip
@precision_flag
@click.option("--kv", metavar="bf16|fp8", help="Cached keys and values.  [default: the engine's]")
@click.option("--slo", default="", metavar="ttft=T,tpot=T", help="Limits of the mean times.  [default: ttft=2s,tpot=50ms]")
@click.option("--users", type=int, metavar="N", help="Also say how many GPUs serve so many users at once.")
@click.option("--layouts", default="", metavar="A;B;...", help='Only these, such as "tp=8;dp=8,ep=8;tp=2,dp=4,ep=8".')
@click.option("--ep-system", default="", metavar="NAME", help="EP kernels: deepep or trtllm-a2a.  [default: the kernels of the machine]")
@click.option("--tensor", default="", metavar="NAME", help="System of tensor-parallel sub-layers, such as cais.  [default: all-reduces]")
@click.option("--mtp", type=int, default=0, metavar="N", help="Drafts of a step and request by MTP layers.")
@click.option("--acceptance", type=float, default=0.8, show_default=True, metavar="A", help="Part of drafts that are accepted.")
@click.option("--routing", metavar="R", shell_complete=complete_routings, help="Recorded or drawn expert choices: also says what EPLB brings.")
@click.option("--what-if", is_flag=True, help="Also: no communication, DySHARP, MoE-Hub, larger NVLink domains, faster NICs, a dead GPU.")
@click.option("--systems", metavar="A,B,...", shell_complete=complete_systems, help="EP systems to simulate at the best point with dispatch.")
@click.option("--merged", is_flag=True, help="Also simulate a layer of the best point as a merged Program, beside the closed form.")
@plot_flag("all points and the front")
@report_flag
@json_flag
@click.pass_context
def serve(
    ctx: click.Context, /, model: str, slo: str, layouts: str, systems: str | None, plot: str | None, report: str | None, as_json: bool, **asked: Any
) -> None:
    """Say how to serve MODEL: which layout at which number of users, how fast, and what limits it.

    Every layout that fits is tried with several numbers of users, and prefill and decode apart. A step is a sum of kernels by closed forms; a
    formula of continuous batching gives TTFT and TPOT. The error bar comes from measured runs.
    """
    from dysharp.api.serving import serve as search
    from dysharp.api.serving import slo_of
    from dysharp.cli.progress_bar import bar

    named = [name for name in layouts.split(";") if name.strip()] or None
    listed = words_of(systems)
    with bar("layouts") as update:
        done = search(model, slo=slo_of(slo), layouts=named, systems=listed, tick=update, **asked)
    if plot is not None:
        from dysharp.show.plots import save_figure
        from dysharp.show.serving import plot_serving

        save_figure(plot_serving(done), plot)
    if report is not None:
        from dysharp.show.serving import write_page

        write_page(done, report, command_line(ctx))
        click.echo(f"report: {report}", err=True)
    print_answer(done.to_dict()) if as_json else print_serving(done)
    print_header(done.header)


MOST_BEST, MOST_FRONT, MOST_REJECTED = 3, 12, 4


def print_serving(done: Serving) -> None:
    """The sentences, then the tables."""
    from dysharp.api.serving_answer import POINT_HEADINGS, SYSTEM_HEADINGS, WHAT_IF_HEADINGS, memory_line, point_cells, system_cells, what_if_cells

    print_lines([*done.sentences(), *done.trust()])
    if done.best:
        click.echo()
        print_table(POINT_HEADINGS, point_cells(done.best[:MOST_BEST]), left=2, text=("limit",))
        print_lines(["", memory_line(done.best[0]), "", f"Start it: {done.launch()}"])
    if advice := done.advice():
        print_lines(["", *advice])
    if done.what_ifs:
        click.echo()
        print_table(WHAT_IF_HEADINGS, what_if_cells(done), left=2)
    if done.systems:
        click.echo()
        print_table(SYSTEM_HEADINGS, system_cells(done), left=2)
    if done.front:
        print_lines(["", "Front: no other point has more tokens per second of a GPU and of a user."])
        print_table(POINT_HEADINGS, point_cells(done.front[:MOST_FRONT]), left=2, text=("limit",))
    if done.rejected:
        print_lines(["", *(f"{one.layout.name}: {one.reason}" for one in done.rejected[:MOST_REJECTED])])
        if len(done.rejected) > MOST_REJECTED:
            print_lines([f"{len(done.rejected) - MOST_REJECTED} more layouts do not fit; --json has all"])
