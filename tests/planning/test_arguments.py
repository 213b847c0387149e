"""A layout as arguments of frameworks."""

import pytest

from dysharp.planning.arguments import FRAMEWORKS, NOT_SAID, lines_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.space import Space, Task
from dysharp.specs import load_cluster, load_whole

FINE = ("mla_up_proj", "layernorm", "moe_act")
PUBLISHED = {
    "tp": 8, "pp": 16, "vpp": 2, "ep": 32, "etp": 1, "cp": 1, "micro_batch": 2, "recompute": FINE, "swap": (),
    "weights": "whole", "schedule": "1f1b", "overlap": "pair", "system": "hierarchical",
}  # fmt: skip


def published() -> tuple[Task, Costed]:
    task = Task(load_whole("pangu-ultra-moe"), 6144, 6144, framework="mindspeed")
    coster = Coster(task, machine_of(load_cluster("paper-ascend-910b")), Space())
    return task, coster.cost_of(PUBLISHED)


def test_mindspeed_counts_groups_of_tensor_ranks() -> None:
    lines = lines_of("mindspeed", *published())
    assert "--expert-model-parallel-size 4" in lines
    assert {"--moe-tp-extend-ep", "--moe-hierarchical-alltoallv", "--moe-fb-overlap", "--recompute-norm"} <= set(lines)


def test_megatron_counts_ranks_and_names_stages() -> None:
    lines = lines_of("megatron-lm", *published())
    assert "--expert-model-parallel-size 32" in lines
    assert "--global-batch-size 6144" in lines
    assert '--pipeline-model-parallel-layout "Ett|(tt|)*29tm|L"' in lines
    assert "--recompute-granularity selective --recompute-modules mla_up_proj layernorm moe_act" in lines
    assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in lines


def test_bridge_sets_fields() -> None:
    lines = lines_of("megatron-bridge", *published())
    assert "cfg.model.virtual_pipeline_model_parallel_size = 2" in lines
    assert "cfg.comm_overlap.overlap_moe_expert_parallel_comm = True" in lines
    namespace: dict[str, object] = {"cfg": Anything()}
    exec("\n".join(lines), namespace)  # every line is Python


class Anything:
    """Takes any field."""

    def __getattr__(self, name: str) -> "Anything":
        return self.__dict__.setdefault(name, Anything())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_dense_layout_has_no_experts(framework: str) -> None:
    task = Task(load_whole("llama3-8b"), 8, 32)
    one = Coster(task, machine_of(load_cluster("hw-dgx-h100")), Space()).cost_of(PUBLISHED | {
        "tp": 2, "pp": 1, "vpp": 1, "ep": 1, "micro_batch": 1, "recompute": ("full",), "overlap": "none", "system": "flat",
    })  # fmt: skip
    text = "\n".join(lines_of(framework, task, one))
    assert "expert" not in text
    assert "moe" not in text
    assert "full" in text
    assert framework in NOT_SAID
