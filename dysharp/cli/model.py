"""`dysharp model`: parameters and FLOPs of a whole model, and the memory of its training step."""

import click

from dysharp.cli.flags import complete_clusters, complete_words, json_flag, words_of
from dysharp.show.output import print_answer, print_header

LAYOUT_HELP = (
    "Also the memory of a training step: tp=, pp=, vpp=, ep=, etp=, cp=, dp= or gpus=, mbs= (sequences of a micro-batch), gbs= or m= "
    "(micro-batches), stages= (Megatron's layout string, such as Et|(tt|)*30mL)."
)


def complete_whole(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of packaged whole models."""
    from dysharp.specs import list_whole_models

    return [name for name in list_whole_models() if name.startswith(incomplete)]


@click.command()
@click.argument("model", metavar="MODEL|FILE", shell_complete=complete_whole)
@click.option("--sequence", type=int, default=4096, show_default=True, metavar="S", help="Tokens of a sequence.")
@click.option("--layout", metavar="KEY=N,...", help=LAYOUT_HELP)
@click.option("--schedule", default="", metavar="NAME", help="Pipeline schedule.  [default: 1f1b; interleaved with vpp above 1]")
@click.option(
    "--precision", default="bf16", show_default=True, metavar="RECIPE",
    shell_complete=complete_words("bf16", "bf16-whole", "bf16-moments", "bf16-gradients", "fp8", "fp8-moments", "fp8-primary", "fp8-deepseek"),
    help="Bytes of weights, gradients and optimizer: bf16, bf16-whole, bf16-moments, bf16-gradients, fp8, fp8-moments, fp8-primary or fp8-deepseek.",
)  # fmt: skip
@click.option(
    "--recompute", default="", metavar="A,B", help="Modules that are computed again, as Megatron names them: mla_up_proj, moe_act, full, ..."
)
@click.option("--dispatcher", default="alltoall", show_default=True, metavar="NAME", help="Whose expert buffers: alltoall, deepep or hybrid-ep.")
@click.option("--fixed-gib", type=float, default=0.0, show_default=True, metavar="G", help="Other memory outside the allocator, such as NCCL's.")
@click.option("--gpu", default="", metavar="NAME", help="Refuse a layout that does not fit the memory of this GPU, such as h100-sxm.")
@click.option("--cluster", metavar="NAME|FILE", shell_complete=complete_clusters, help="As --gpu, and refuse groups beyond its NVLink domains.")
@json_flag
def model(
    model: str, sequence: int, layout: str | None, schedule: str, precision: str, recompute: str, dispatcher: str, fixed_gib: float,
    gpu: str, cluster: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Count parameters and FLOPs of a whole model, and the memory of its training step.

    With --layout the memory of every pipeline rank at its peak. A layout that does not fit gets one line that names the constraint.
    """
    from dysharp.api.whole_model import describe
    from dysharp.cli.texts.model_text import print_description, shown_if_refused

    modules = words_of(recompute) or ()
    with shown_if_refused():
        done = describe(
            model, sequence=sequence, layout=layout, schedule=schedule, precision=precision, recompute=modules, dispatcher=dispatcher,
            fixed_gib=fixed_gib, gpu=gpu, cluster=cluster,
        )  # fmt: skip
    print_answer(done.to_dict()) if as_json else print_description(done)
    print_header(())
