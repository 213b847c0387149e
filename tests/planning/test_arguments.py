"""A layout as arguments of frameworks."""

from dataclasses import replace

import pytest

from dysharp.planning.arguments import FRAMEWORKS, NOT_SAID, environment_of, lines_of
from dysharp.planning.cost import Costed, Coster, machine_of
from dysharp.planning.plan import training_recipe_for
from dysharp.planning.space import Space, Task
from dysharp.runs.precision import in_formats, step_formats
from dysharp.specs import load_cluster, load_whole
from dysharp.training.megatron import arguments_from

FINE = ("mla_up_proj", "layernorm", "moe_act")
PUBLISHED = {
    "tp": 8, "pp": 16, "vpp": 2, "ep": 32, "etp": 1, "cp": 1, "micro_batch": 2, "recompute": FINE, "offload": (),
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


def test_what_megatron_asserts_is_there() -> None:
    """Megatron-LM refuses FSDP with another checkpoint format, and offloading without its variable."""
    task = Task(load_whole("qwen3-30b"), 16, 64)
    coster = Coster(task, machine_of(load_cluster("hw-dgx-h100-x2")), Space())
    free = PUBLISHED | {"tp": 1, "pp": 1, "vpp": 1, "ep": 8, "micro_batch": 1, "recompute": (), "overlap": "none", "system": "deepep"}
    plain, shared = coster.cost_of(free), coster.cost_of(free | {"weights": "sharded", "offload": ("core_attn",)})
    assert "--ckpt-format fsdp_dtensor" in lines_of("megatron-lm", task, shared)
    assert 'cfg.checkpoint.ckpt_format = "fsdp_dtensor"' in lines_of("megatron-bridge", task, shared)
    assert {"NVTE_CPU_OFFLOAD_V1=1", "CUDA_DEVICE_MAX_CONNECTIONS=32"} == set(environment_of("megatron-lm", shared))
    assert "--ckpt-format fsdp_dtensor" not in lines_of("megatron-lm", task, plain)
    assert not environment_of("megatron-lm", plain)
    assert set(environment_of("megatron-lm", coster.cost_of(free | {"tp": 2}))) == {"CUDA_DEVICE_MAX_CONNECTIONS=1"}


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
    machine, llama = machine_of(load_cluster("hw-dgx-h100")), load_whole("llama3-8b")
    task = Task(llama, 8, 32, training_recipe=training_recipe_for(llama, machine))
    one = Coster(task, machine, Space()).cost_of(PUBLISHED | {
        "tp": 2, "pp": 1, "vpp": 1, "ep": 1, "micro_batch": 1, "recompute": ("full",), "overlap": "none", "system": "flat",
    })  # fmt: skip
    text = "\n".join(lines_of(framework, task, one))
    assert ("tp_comm_overlap" in text.replace("-", "_")) is framework.startswith("megatron")  # as its time has it
    assert "expert" not in text
    assert "moe" not in text
    assert "full" in text
    assert framework in NOT_SAID


@pytest.mark.parametrize(
    ("precision", "lines", "field"),
    [
        ("fp8", {"--bf16", "--fp8-format e4m3 --fp8-recipe blockwise"}, "bf16_with_fp8_subchannel_scaling_mixed"),
        ("mxfp8", {"--fp8-format e4m3 --fp8-recipe mxfp8"}, "bf16_with_mxfp8_mixed"),
        ("fp8-primary", {"--fp8-param-gather"}, "bf16_with_fp8_subchannel_scaling_mixed"),
        ("bf16-moments", {"--bf16", "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"}, "bf16_mixed"),
    ],
)
def test_a_precision_that_was_said_is_among_the_arguments(precision: str, lines: set[str], field: str) -> None:
    task, one = published()
    model, training_recipe = in_formats(
        task.model, task.training_recipe, step_formats(precision, task.model), machine_of(load_cluster("hw-dgx-h100"))
    )
    said = replace(task, model=model, training_recipe=training_recipe)
    text = " ".join(written := lines_of("megatron-lm", said, one))
    assert lines <= set(written)
    assert any(field in line for line in lines_of("megatron-bridge", said, one))
    assert "--bf16" not in lines_of("megatron-lm", task, one)
    if precision != "fp8-primary":  # which `--fp8-param-gather` says, and no precision reads
        assert arguments_from(f"{text} --world-size 6144", task.model, "gpus=6144").precision.split(",")[0] == precision.removesuffix("-moments")
