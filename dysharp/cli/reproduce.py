"""`dysharp reproduce`: published values and simulated values of figures. `dysharp sweep`: points of a user, run and kept in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from dysharp.base import ByName, ConfigError, Texts, make_folder, nearest, one_line, write_text
from dysharp.cli.flags import WRITTEN, Json, Plot, complete_files, options, refuse_others
from dysharp.cli.report import ReportFile, command_line, write_report
from dysharp.runs.arguments import Argument
from dysharp.show.output import console, print_answer, print_columns, print_header, print_lines, warn

if TYPE_CHECKING:
    from dysharp.figures import Figure, Point, Result, Store

    Done = tuple[Figure, Sequence[Result], dict[Point, ByName]]

PAGE_WIDTH = 130  # of the tables in a file: points have long names


class Wanted(NamedTuple):
    """What is asked about a tornado and about finite hardware, and what is written."""

    tornado: bool
    subject: str
    tornado_model: str
    tornado_tokens: int | None
    finite: bool
    report: Annotated[str | None, WRITTEN] = None
    pages: str | None = None
    plot: Plot = None
    paper: Annotated[str | None, {"flag_value": "-", "type": str}] = None


StoreFolder = Annotated[str | None, Argument(None, "folder that keeps finished points. None: the user's cache.", "DIR", None, "--store")]


def _run(points: Sequence[Point], store: Store, jobs: int, what: str) -> tuple[dict[Point, ByName], dict[Point, str]]:
    """({point: Row}, {point: why it failed}); failures are also printed on stderr."""
    from dysharp.cli.progress_bar import bar
    from dysharp.figures import check_points, run_points

    check_points(points)
    store.open()
    with bar("points") as progress:
        rows, failed = run_points(points, store, jobs, progress)
    for why in dict.fromkeys(failed.values()):
        warn(f"{what}: {why}")
    return rows, failed


def _store(folder: str | None) -> Store:
    from dysharp.figures import Store

    return Store(Path(folder)) if folder else Store.default()


def _chosen(names: Sequence[str], every: bool, models: str | None, direction: str, variants: bool) -> list[tuple[Figure, list[Point]]]:
    """The figures asked for, each with its points to run, the points of its `variants` last."""
    from dysharp.figures import in_direction, load_figure, variant_points

    keep = None if models is None else {m.strip() for m in models.split(",")}
    figures = [in_direction(load_figure(name), direction) for name in names]
    for figure in figures:
        for unknown in sorted((keep or set()) - set(figure.models)):
            if not every:
                raise ConfigError(f"--models: found {unknown!r} in {figure.name}{nearest(unknown, figure.models)}")
    base = [(f, [p for p in f.points if keep is None or p.model in keep]) for f in figures]
    return [(f, points + (variant_points(f, points) if variants else [])) for f, points in base]


def _json(name: str, results: Sequence[Result], holds: bool) -> ByName:
    from dysharp.show.figure_tables import RESULTS

    lines = [values | {"holds": r.holds} for r, values in zip(results, RESULTS.values(results), strict=True)]
    return {"figure": name, "rows": lines, "verdict": "holds" if holds else "does not hold"}


def _plot_windows(rows: dict[Point, ByName], path: str) -> None:
    from dysharp.figures.window_map import mark_defaults
    from dysharp.show.plots import plot_windows, save_figure

    axes = plot_windows(rows)
    mark_defaults(axes, rows)
    save_figure(axes, path)


@click.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE|FILE.toml]...")
@options(Wanted)
@click.pass_context
def reproduce(
    ctx: click.Context, /, figures: Texts, every: bool, models: Annotated[str | None, {"type": str}], direction: str, jobs: int, store: StoreFolder,
    *, variants: Annotated[bool, {"show_default": False}], check: bool, as_json: Json, **flags: Any,
) -> None:  # fmt: skip
    """Compare the papers' figures and tables with simulated values.

    The first line of each figure says how many of the paper's numbers came out; one line for each of them follows. `reproduced` is inside a
    bound that was set before the number was seen and that the number could have missed; `gap` is outside. A regression value is compared
    with this package's own stored value, which says nothing about a paper. The exit code is 0 whatever came out, and 1 when a point
    failed. Finished points are kept: an interrupted run continues where it stopped. --plot draws the window map of figure `windows`.
    """
    from dysharp.analysis import MODEL_VERSION
    from dysharp.figures import judge, list_figures
    from dysharp.show.figure_tables import figure_markdown, print_figure

    names = list_figures() if every else list(figures)
    wanted = Wanted(**flags)
    if wanted.paper is not None:
        return _write_up(wanted.paper, command_line(ctx), names)
    if wanted.finite:
        ctx.exit(_finite(_chosen(names or list_figures(), not figures, models, direction, False), _store(store), jobs, wanted, as_json=as_json))
    if not wanted.tornado:
        refuse_others("reproduce", {*ctx.params} - {"subject", "tornado_model", "tornado_tokens"}, "--tornado beside (points have their own)")
    _check_request(names, wanted, direction=direction, check=check)
    where = _store(store)
    out, sections, all_hold, all_ran = [], [], True, True
    done: list[Done] = []
    chosen, report = _chosen(names, every, models, direction, variants), wanted.report or ""
    if report.endswith(".html"):
        _check_simulated(chosen)
    together = jobs > 1 and len(chosen) > 1  # else processes would wait at the end of each figure
    all_rows, all_failed = _run([point for _, points in chosen for point in points], where, jobs, "figures") if together else ({}, {})
    for figure, points in chosen:
        found, failed = (all_rows, all_failed) if together else _run(points, where, jobs, figure.name)
        rows, ran = {p: found[p] for p in points if p in found}, not any(p in failed for p in points)
        results, holds = judge(figure, rows)
        all_hold, all_ran = all_hold and holds, all_ran and ran
        out.append(_json(figure.name, results, holds and ran))
        sections.append(figure_markdown(figure, results))
        done.append((figure, results, rows))
        if not as_json:
            print_figure(figure, results, console(PAGE_WIDTH))
        if wanted.plot is not None and figure.name == "windows":
            _plot_windows(rows, wanted.plot)
    if wanted.tornado:
        figure, results, page, fine = _tornado(wanted, where, jobs, quiet=as_json)
        out.append(_json(figure.name, results, fine))
        sections.append(page)
        done.append((figure, results, {}))
        all_ran = all_ran and fine
    asked = [
        *(["--all"] if every else figures), *["--no-variants"] * (not variants), *[f"--tornado --tornado-of {wanted.subject}"] * wanted.tornado,
        *[f"--tokens {wanted.tornado_tokens}"] * (wanted.tornado_tokens is not None),
        *[f"--models {models}"] * (models is not None), *[f"--direction {direction}"] * (direction != "fwd"),
    ]  # fmt: skip
    if report.endswith(".html"):
        _write_html(done[: len(chosen)], command_line(ctx), report)
    elif report:
        head = f"# Reproduction\n\nWritten by `dysharp reproduce {' '.join(asked)} --report {report}`, model version {MODEL_VERSION}.\n\n"
        write_text(report, head + "\n".join(sections))
    if wanted.pages is not None:
        _write_pages(done, Path(wanted.pages), f"dysharp reproduce {' '.join(asked)} --pages {wanted.pages}")
    if as_json:
        print_answer(out)
    print_header(())
    ctx.exit(0 if all_ran and (all_hold or not check) else 1)


def _finite(chosen: Sequence[tuple[Figure, list[Point]]], store: Store, jobs: int, asked: Wanted, *, as_json: bool) -> int:
    """Print what finite hardware leaves of the claims of each figure. Returns the exit code: 1 where a claim has no Rows."""
    from dysharp.base.columns import Column, Columns
    from dysharp.figures.finite import claims_of, estimate, survivals

    if not (figures := [(figure, points) for figure, points in chosen if claims_of(figure)]):
        raise ConfigError(f"--finite: found {', '.join(figure.name for figure, _ in chosen)}, expected a figure with ratios of layer times")
    click.echo(estimate(figures, asked.tornado_tokens), err=True)
    columns = Columns("claim=name", "headline:.3f", "finite:.3f", "verdict", Column("takes", "takes most", of=lambda one: one.resource or "-"))
    out, wanted, found = [], 0, 0
    for figure, points in figures:
        left = survivals(figure, points, lambda some, name=figure.name: _run(some, store, jobs, name)[0], asked.tornado_tokens)  # type: ignore[misc]
        wanted, found = wanted + len(claims_of(figure)), found + len(left)
        out += [{"figure": figure.name, **one.to_dict()} for one in left]
        if not as_json:
            print_lines([figure.name])
            print_columns(columns, left)
    if as_json:
        print_answer(out)
    return int(found < wanted)


def _write_up(where: str, command: str, figures: Sequence[str]) -> None:
    """Print what holds of the papers as Markdown ("-"), or write it: FILE.md, FILE.html, or both into a folder."""
    from dysharp.figures.figure import PAPERS, list_figures
    from dysharp.figures.stored import finite_claims, page_of, stored_answers, stored_figures, stored_folder
    from dysharp.show.paper_page import Section, by_number
    from dysharp.show.write_up import Paper, html, markdown, write_up

    if named := [*figures, *({where} & set(list_figures()))]:
        raise ConfigError(f"--paper: found {named[0]}, expected no figure, and FILE.md, FILE.html or a folder")
    folder = stored_folder()
    papers = [Paper(t, *page_of(p, folder), sorted((Section(*f) for f in stored_figures(p, folder)), key=by_number)) for p, t in PAPERS.items()]
    parts = write_up(papers, stored_answers(folder), finite_claims())
    if where == "-":
        return click.echo(markdown(parts, command), nl=False)
    paths = [Path(where)]
    if not where.endswith((".md", ".html")):
        make_folder(paths.pop(), "--paper")
        paths += [Path(where) / "paper.md", Path(where) / "paper.html"]
    for path in paths:
        write_text(str(path), (html if path.suffix == ".html" else markdown)(parts, command))
        click.echo(f"paper: {path}", err=True)


def _check_request(names: Sequence[str], wanted: Wanted, *, direction: str, check: bool) -> None:
    """Raise ConfigError for flags that do not fit each other, and for files that cannot be written, before any point runs."""
    from dysharp.figures import list_figures

    if not names and not wanted.tornado:
        raise ConfigError(f"reproduce: found no figure, expected --all, --tornado or figures among {', '.join(list_figures())}")
    if wanted.tornado and direction != "fwd":
        raise ConfigError(f"--tornado: found direction {direction[:20]}, expected fwd (its headline ratios are about the forward pass)")
    if check and direction != "fwd":
        raise ConfigError(f"--check: found direction {direction[:20]}, expected fwd (claims exist for the forward pass only)")
    if wanted.plot is not None and "windows" not in names:
        raise ConfigError(f"--plot: found figures {', '.join(names) or 'none'}, expected windows among them")
    if (wanted.report or "").endswith(".html") and not names:
        raise ConfigError("--report: found .html without a figure, expected .md for a tornado alone")
    if wanted.pages is not None:
        make_folder(Path(wanted.pages), "--pages")


def _check_simulated(chosen: Sequence[tuple[Figure, Sequence[Point]]]) -> None:
    """Raise ConfigError where no point is simulated: an HTML report shows runs."""
    from dysharp.figures.metric import all_calculated

    if all(point.system in all_calculated() for _, points in chosen for point in points):
        names = ", ".join(figure.name for figure, _ in chosen)
        raise ConfigError(f"--report: found .html for {names}, whose numbers are calculated without a run, expected .md")


def _write_html(done: Sequence[Done], command: str, path: str) -> None:
    """One HTML file: what became of the claims, then the simulated points, one table for each workload."""
    from dysharp.show.figure_tables import verdict_text
    from dysharp.show.html_report import report_of_rows

    rows = {id(row): row for _, _, found in done for row in found.values() if "attribution" in row}  # closed forms have no times
    page = report_of_rows(list(rows.values()), command, "Reproduction of " + ", ".join(figure.name for figure, _, _ in done))
    write_report(dataclasses.replace(page, answer=tuple(f"{figure.name}: {verdict_text(results)}" for figure, results, _ in done)), path)


def _write_pages(done: Sequence[Done], folder: Path, command: str) -> None:
    """Write a page for each paper that has figures among `done`. Other figures of the page stay as their CSV files in `folder` have them."""
    from dysharp.analysis import MODEL_VERSION
    from dysharp.figures.figure import BEYOND, PAPERS
    from dysharp.figures.series import series_of
    from dysharp.figures.stored import page_head
    from dysharp.show.figure_plots import plot_series
    from dysharp.show.paper_page import Section, claims_csv, paper_page, results_csv
    from dysharp.show.plots import save_figure

    every: list[Section] = []
    for paper, title in PAPERS.items():
        name, sections = paper or BEYOND, []
        for figure, results, rows in (entry for entry in done if entry[0].paper == paper):
            (folder / name).mkdir(parents=True, exist_ok=True)
            write_text(str(folder / name / f"{figure.name}.csv"), results_csv(results))
            series = series_of(figure, rows)
            if series is not None:
                save_figure(plot_series(series, figure.title), folder / name / f"{figure.name}.svg")
            sections.append(Section(figure, results, series is not None))
        page = folder / f"{name}.md"
        kept = _kept(folder / name, paper, {section.figure.name for section in sections}, Section)
        whole = page_head(page.read_text(encoding="utf-8"))[0] if kept else command  # the command that ran all figures of the page
        if sections:
            write_text(str(page), paper_page(title, name, sections + kept, whole, MODEL_VERSION))
        sections += kept
        every += sections
    write_text(str(folder / "claims.csv"), claims_csv(every))


def _kept(folder: Path, paper: str, ran: set[str], section: Callable[..., Any]) -> list[Any]:
    """The other figures of a page, as their CSV files in `folder` have them; none where the page is of another model version."""
    from dysharp.analysis import MODEL_VERSION
    from dysharp.figures.stored import stored_figures

    page = folder.with_suffix(".md")
    if not page.exists() or f", model version {MODEL_VERSION}." not in page.read_text(encoding="utf-8"):
        return []
    kept = stored_figures(paper, folder.parent)
    return [section(f, results, (folder / f"{f.name}.svg").exists()) for f, results in kept if f.name not in ran]


def _tornado(asked: Wanted, store: Store, jobs: int, *, quiet: bool) -> tuple[Figure, list[Result], str, bool]:
    """(figure, results, Markdown, whether every point finished); prints the table unless `quiet`."""
    from dysharp.base.table import plain_table
    from dysharp.figures.tornado import HEADLINES, Tornado
    from dysharp.show.markdown import table

    if asked.subject not in HEADLINES:
        raise ConfigError(f"--tornado-of: found {asked.subject[:20]!r}, expected {' or '.join(HEADLINES)}")
    tornado = Tornado(asked.tornado_model, HEADLINES[asked.subject], tokens=asked.tornado_tokens)
    rows, failed = _run(tornado.all_points(), store, jobs, "tornado")
    figure, bars = tornado.figure(), tornado.bars(rows)
    columns, lines = tornado.table(rows, bars)
    if not quiet:
        console(PAGE_WIDTH).print(f"{figure.name}: {figure.title}", style="italic", markup=False)
        console(PAGE_WIDTH).print(plain_table(columns, lines))
    page = f"## {figure.name}: {figure.title}\n\n{figure.source}\n\n{figure.text}\n\n{table(columns, lines)}\n"
    return figure, tornado.results(rows, bars), page, not failed


@click.command()
@click.argument("file", metavar="FILE.toml", required=False, shell_complete=complete_files)
@options()
@click.pass_context
def sweep(
    ctx: click.Context, /, file: str | None, example: bool, jobs: int, store: StoreFolder, csv_file: Annotated[str | None, WRITTEN],
    out: Annotated[str | None, WRITTEN], report: ReportFile, as_json: Json,
) -> None:  # fmt: skip
    """Simulate all combinations of systems, models, clusters and more in FILE.toml.

    `dysharp sweep --example > my.toml` writes a file to begin with. Exit code 1 when a point failed. Finished points are kept: an
    interrupted sweep continues where it stopped.
    """
    import json

    from dysharp.cli.texts.sweep_text import print_sweep, sweep_csv
    from dysharp.figures import load_figure
    from dysharp.runs.store import point_dict

    if example:
        click.echo(_example_sweep(), nl=False)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE.toml'; `dysharp sweep --example` prints one")
    if not file.endswith(".toml"):
        raise ConfigError(f"sweep: found {file!r}, expected a .toml file with a [points] table; `dysharp sweep --example` prints one")
    figure, where = load_figure(file), _store(store)
    points = list(dict.fromkeys(figure.points))
    rows, failed = _run(points, where, jobs, figure.name)
    if out is not None:
        write_text(out, "".join(json.dumps({"point": point_dict(p), "row": row}) + "\n" for p, row in rows.items()))
    if csv_file is not None:
        write_text(csv_file, sweep_csv(rows))
    if report is not None and rows:
        from dysharp.show.html_report import report_of_rows

        write_report(report_of_rows(list(rows.values()), command_line(ctx)), report)
    if as_json:
        print_answer({"n_points": len(points), "n_done": len(rows), "n_failed": len(failed), "store": str(where.folder)})
    else:
        print_sweep(rows)
        click.echo(f"{len(points)} points: {len(rows)} done, {len(failed)} failed; store {one_line(str(where.folder))}")
    print_header(())
    ctx.exit(1 if failed else 0)


def _example_sweep() -> str:
    """A sweep file that runs, with comments."""
    from importlib.resources import files

    return files("dysharp.figures").joinpath("sweep_example.toml").read_text(encoding="utf-8")
