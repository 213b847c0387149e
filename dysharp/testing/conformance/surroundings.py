"""Rules about the surroundings that `dysharp run` adds to a Program on an hw cluster."""

from dysharp.api import run
from dysharp.testing.conformance.case import REAL, SystemCase
from dysharp.testing.conformance.rule import Lines, NotRun, rule


@rule("system")
def _pure_communication_has_no_surroundings(case: SystemCase) -> Lines:
    """On an hw cluster and without GEMMs, a Row has the Program's time and no surroundings."""
    if not case.system.has_real_form or not hasattr(case.options, "compute"):
        raise NotRun('a real form with the option "compute" is needed')
    options = case.given | {"compute": False}
    row = run(case.system.name, model="deepseek-v2-lite", cluster=REAL, tokens=32, routing="uniform", options=options)
    if row.surroundings_us or "surroundings_us" in row.to_dict():
        yield f"surroundings_us: found {row.surroundings_us}, expected none"
    if not row.eager_us == row.time_us == row.simulated_us:
        yield f"times: found eager {row.eager_us}, time {row.time_us}, simulated {row.simulated_us} us, expected equal times"
