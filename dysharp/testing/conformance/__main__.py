"""`python -m dysharp.testing.conformance NAME`."""

import sys

import click

from dysharp.base import DysharpError, Texts
from dysharp.runs import parse_set
from dysharp.systems.registry import import_systems
from dysharp.testing.conformance import conformance


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@click.option("--import", "modules", multiple=True, metavar="FILE|MODULE", help="Import this first, so that it registers the system.")
@click.option("--set", "options", multiple=True, metavar="OPTION=VALUE", help="An option of the system.")
@click.option("--rule", "rules", multiple=True, metavar="RULE", help="Run only this rule; repeatable. A slow rule runs only if it is named.")
def main(name: str, modules: Texts, options: Texts, rules: Texts) -> None:
    """Try the system NAME on small layers and print its faults. Exit code 1: a rule failed, or no rule ran; 2: wrong input."""
    try:
        for module in modules:
            import_systems(module)
        report = conformance(name, options=parse_set(options), rules=rules or None)
    except DysharpError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(report)
    sys.exit(0 if report else 1)


if __name__ == "__main__":
    main()
