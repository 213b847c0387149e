"""`dysharp plan` as text: the answer, the best layouts, where every candidate went, what was not considered, and what else was asked for."""

import click

from dysharp.api.planning import CHECKED, COUNTS, MOVED, RANKED, SERVED, SHAPES, Answer
from dysharp.planning.cost import Costed
from dysharp.planning.names import schedule_of, short_of, simulated, text_of
from dysharp.planning.plan import LAYOUTS, NOT_CONSIDERED
from dysharp.planning.space import Task
from dysharp.show.output import print_columns, print_header, print_lines
from dysharp.specs import Cluster, load_whole


def print_plan(done: Answer, models: str, cluster: str) -> None:
    """The sentence and the tables. `models`, `cluster`: as they were asked for, so that the command for `dysharp step` finds files, too."""
    print_lines([done.sentence()])
    click.echo()
    print_columns(LAYOUTS, done.rows(), whole=1)
    one = done.plan.first
    name = next((text for text in map(str.strip, models.split(",")) if load_whole(text).name == one.task.model.name), "MODEL")
    options = _for_step(one.found.best[0], one.task, one.coster.machine.cluster, done.precision)
    click.echo(f"\ndysharp step {name} --cluster {cluster} \\\n  {options}")
    if len(done.plan.shapes) > 1:
        click.echo()
        print_columns(SHAPES, done.shape_rows())
    click.echo()
    print_columns(COUNTS, done.count_rows())
    if done.ranked:
        click.echo()
        print_columns(RANKED, done.ranked_rows())
        print_lines([f"No Row: {name}: {why}" for name, why in done.ranked.left_out.items()])
    if done.moved is not None:
        click.echo()
        print_lines([done.moved_line()])
        print_columns(MOVED, done.moved, whole=1)
    if done.served:
        click.echo()
        print_columns(SERVED, done.serving_rows())
    click.echo()
    if done.confirmed:
        print_lines([done.confirmed.sentence()])
    if any(one.read for one in done.plan.shapes):
        print_lines([f"Costs of an earlier search: {sum(one.read for one in done.plan.shapes):,}."])
    print_lines(["Not considered: " + "; ".join(NOT_CONSIDERED) + "."])


def _for_step(one: Costed, task: Task, machine: Cluster, precision: str) -> str:
    """Options of `dysharp step` for a layout, in lines of a shell that say where offload is missing. `precision`: as it was asked for, or ""."""
    stages = f",stages={one.layout.stages}" if one.layout.pp > 1 else ""
    again = f" --recompute {','.join(one.values['recompute'])}" if one.values["recompute"] else ""
    if (layer := task.model.layer) is not None and (precision or layer.gemm_dtype) != "bf16":
        precision = f"{precision or layer.gemm_dtype},sent=bf16,back=bf16"
    order = "interleaved-overlap" if one.values["overlap"] == "pair" and one.layout.vpp > 1 else schedule_of(one)
    asked = f" --sequence {task.sequence}" + (f" --precision {precision}" if precision else "")
    if layer is not None:
        hot, loads = task.imbalance or 1.0, f"normal-cv:{task.spread:g}" if task.spread and task.imbalance is None else "uniform"
        loads += ":group-limited" * (layer.topk_group < layer.n_group)
        asked += f" --routing {f'hot-rank:share={hot / one.layout.ep:.4g}' if hot > 1 else loads}"
        system = simulated(one.values["system"], machine)
        asked += f" \\\n  --systems {system}" if system else ""
    return f"--layout '{text_of(one)}{stages}' \\\n  --schedule {order}{again}{asked}{'  # which does not offload' * bool(one.values['offload'])}"


def print_check(done: Answer) -> None:
    """The verdict on a layout, and its parts of the step beside those of the best layout."""
    print_lines([done.verdict()])
    click.echo()
    print_columns(CHECKED, done.check_rows())


def print_arguments(done: Answer, framework: str) -> None:
    """A layout as arguments of a framework; on stderr the environment that it asserts, and what the arguments leave out."""
    from dysharp.planning.arguments import NOT_SAID, environment_of

    for line in done.arguments(framework):
        click.echo(line)
    said = [f"{setting} ({why})" for setting, why in environment_of(framework, done.pasted).items()]
    print_header([f"{framework}: set {one}." for one in said] + [f"{framework}: {NOT_SAID[framework]}"], version=False)


def draw_plan(done: Answer, path: str) -> None:
    """The picture of the first shape."""
    from dysharp.api.plan_confirm import replayed
    from dysharp.base.units import GiB
    from dysharp.show.plan_plots import plot_plan
    from dysharp.show.plots import save_figure

    one = done.plan.first
    best = one.found.best
    axes = plot_plan(
        f"{one.task.model.name}, {one.task.gpus} GPUs of {done.plan.cluster.name}", [short_of(x) for x in best], [one.speed(x) for x in best],
        [x.limit for x in best], [n / GiB for n in best[0].memory], one.coster.capacity / GiB, replayed(one.coster, best[0]),
    )  # fmt: skip
    save_figure(axes, path)
