"""`--json-schema`: what `--json` prints, as a JSON Schema."""

import click

from dysharp.base import ByName
from dysharp.show.output import print_json

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _row_schema() -> ByName:
    """The schema of a Row as `dysharp run --json` prints it."""
    from pydantic import TypeAdapter

    from dysharp.analysis import MODEL_VERSION, Row
    from dysharp.analysis.row import LEFT_OUT

    schema = TypeAdapter(Row).json_schema()
    del schema["properties"]["header"]
    schema["properties"] |= {name: {"type": "number"} for name in ("simulated_us", "eager_us")}
    schema["properties"]["finite"] = {"type": "array", "items": {"type": "string"}}
    schema["required"] = [name for name in schema["required"] if name not in ("header", *LEFT_OUT)]
    return {"$schema": _DRAFT, "title": f"Row of dysharp, model version {MODEL_VERSION}, without --quick"} | {
        name: value for name, value in schema.items() if name not in ("title", "description")
    }


def _comparison_schema() -> ByName:
    """The schema of what `dysharp compare --json` prints."""
    text, texts = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "$schema": _DRAFT,
        "title": "Comparison of dysharp, without --quick",
        "type": "object",
        "required": ["model_version", "rows", "baseline", "baselines", "speedup", "header", "sentence"],
        "properties": {
            "model_version": text, "rows": {"type": "array", "items": _row_schema()}, "baseline": text,
            "speedup": {"type": "object", "additionalProperties": {"type": "number"}}, "header": {"type": "array", "items": text}, "sentence": text,
            **dict.fromkeys(("baselines", "left_out", "out_of_ranking", "formats"), texts),
            **{name: {"type": "object"} for name in ("tuned", "why", "finite", "gain_map")},
        },
    }  # fmt: skip


def _explanation_schema() -> ByName:
    """The schema of what `dysharp explain --json` prints of one run."""
    from pydantic import TypeAdapter

    from dysharp.api.explaining import Explanation

    schema = TypeAdapter(Explanation).json_schema()
    del schema["properties"]["events"]
    return {"$schema": _DRAFT} | schema


_SCHEMAS = {"compare": _comparison_schema, "explain": _explanation_schema}


def _print(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        print_json(_SCHEMAS.get(ctx.info_name or "", _row_schema)())
        ctx.exit()


schema_flag = click.option(
    "--json-schema", is_flag=True, is_eager=True, expose_value=False, callback=_print, help="Print the JSON Schema of --json and exit."
)
