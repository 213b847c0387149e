"""Layouts from Megatron-LM arguments and Megatron-Bridge recipes: text is data, and what is not read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dysharp.base.errors import ConfigError
from dysharp.costs.machine import Machine
from dysharp.model import check_layout, layout_of
from dysharp.model.formats import formats_of
from dysharp.model.layout import chunks_of
from dysharp.specs import load_cluster, load_whole
from dysharp.training.costs import step_costs
from dysharp.training.megatron import _arguments_of, _read_settings, arguments_from
from dysharp.training.recipe import TrainingRecipe

V3 = load_whole("deepseek-v3")
QWEN = load_whole("qwen3-235b")
ARGS = (
    "torchrun --nproc-per-node 8 --nnodes=128 pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 8 \\\n"
    "--pipeline-model-parallel-layout 'Et|(tt|)*30mL' --expert-model-parallel-size 64 --global-batch-size 8192 --seq-length 4096 "
    "--recompute-granularity selective --recompute-modules mla_up_proj mlp --num-layers 61 --load $CHECKPOINT --fp8-format e4m3 "
    "--exp-avg-dtype bf16 --overlap-moe-expert-parallel-comm --lr 1e-4"
)
SHARED = " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
YAML = """# a recipe
model:
  _target_: provider  # a comment
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 4
  expert_model_parallel_size: 32
  context_parallel_size: null
  account_for_embedding_in_pipeline_split: true
  account_for_loss_in_pipeline_split: true
  num_moe_experts: 128
  moe_layer_freq:
  - 1
  - 1
  recompute_granularity: selective
  recompute_modules: [layernorm, moe_act]
  seq_length: 4096
train:
  global_batch_size: 1024
  micro_batch_size: 1
"""
PYTHON = '''
import torch

def small():
    cfg = base()
    cfg.model.tensor_model_parallel_size = 1

def pretrain(cfg):
    """Not run."""
    raise SystemExit
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.pipeline_model_parallel_layout = "Et|(tt|)*30mL"
    cfg.model.expert_model_parallel_size = 64
    cfg.model.recompute_modules = ["mla_up_proj"]
    cfg.model.recompute_granularity = "selective"
    cfg.train = TrainConfig(global_batch_size=8192, micro_batch_size=1, train_iters=steps())
'''


def test_arguments_of_a_command_line() -> None:
    found = arguments_from(ARGS, V3)
    layout = layout_of(found.layout)
    assert (layout.tp, layout.pp, layout.vpp, layout.ep, layout.gpus, layout.global_batch) == (2, 8, 4, 64, 1024, 8192)
    check_layout(V3, layout)
    assert [chunk.n_layers for chunk in chunks_of(V3, layout)] == [1, *[2] * 30, 0]
    assert (found.sequence, found.recompute, found.precision) == (4096, ("mla_up_proj", "mlp"), "fp8-tensor,state=fp8-moments")
    assert found.notes[0] == "Arguments that change the time and are not read: overlap_moe_expert_parallel_comm=True."
    assert "no --use-distributed-optimizer" in found.notes[1]
    assert "no --sequence-parallel" in found.notes[2]
    assert len(arguments_from(ARGS + " --use-distributed-optimizer --sequence-parallel", V3).notes) == 1
    assert "recompute_modules foo" in arguments_from("--recompute-activations --recompute-modules foo", V3).notes[0]


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("", ""),
        ("--bf16", "bf16"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "fp8"),
        ("--bf16 --fp8-format hybrid", "fp8-tensor"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "fp4-all"),
        ("--bf16 --exp-avg-dtype bf16", "bf16,state=bf16-moments"),
        ("--bf16 --exp-avg-dtype bf16 --main-grads-dtype bf16", "bf16,state=bf16-gradients"),
        ("--mixed-precision bf16_with_fp8_subchannel_scaling_mixed", "fp8"),
        ("--mixed-precision bf16_with_mxfp8_mixed", "mxfp8"),
        ("--mixed-precision bf16_mixed", "bf16"),
    ],
)
def test_arguments_name_a_precision(words: str, precision: str) -> None:
    found = arguments_from(f"--use-distributed-optimizer --expert-model-parallel-size 8 --world-size 8 --global-batch-size 8 {words}", V3)
    assert found.precision == precision
    if precision:
        formats_of(found.precision)
    assert not found.notes


def test_keys_of_the_layout_count_first() -> None:
    assert layout_of(arguments_from(ARGS, V3, "gpus=2048,m=16").layout).micro_batches == 16


def test_a_recipe_in_yaml_counts_embedding_and_loss_as_layers(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(YAML)
    found = arguments_from(str(file), QWEN, "gpus=256")
    layout = layout_of(found.layout)
    assert (layout.tp, layout.vpp, layout.dp, layout.micro_batches) == (4, 4, 8, 128)
    assert [chunk.n_layers for chunk in chunks_of(QWEN, layout)] == [2, *[3] * 30, 2]
    assert found.recompute == ("layernorm", "moe_act")


def test_the_same_in_toml_json_and_a_file_of_arguments(tmp_path: Path) -> None:
    for name, text in (
        ("a.toml", "[model]\ntensor_model_parallel_size = 2\nexpert_model_parallel_size = 8\n"),
        ("a.json", '{"model": {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 8, "vp": null}}'),
        ("a.sh", "# comment\n--tensor-model-parallel-size 2 \\\n  --expert-model-parallel-size 8\n"),
    ):
        (tmp_path / name).write_text(text)
        etp = 2 if name == "a.sh" else 1
        assert layout_of(arguments_from(str(tmp_path / name), QWEN).layout) == layout_of(f"tp=2,ep=8,etp={etp}"), name


def test_an_optimizer_on_the_host_is_named() -> None:
    (note,) = arguments_from("--use-distributed-optimizer --world-size 8 --expert-model-parallel-size 8 --optimizer-cpu-offload", QWEN).notes
    assert note == "Arguments that change the time and are not read: optimizer_cpu_offload=True."


@pytest.mark.parametrize(("said", "named"), [
    ("--attention-backend unfused", "attention_backend=unfused"), ("--attention-backend flash", ""), ("--exp-avg-dtype fp8", "exp_avg_dtype=fp8"),
    ("--exp-avg-dtype bf16", ""), ("--moe-layer-recompute", "moe_layer_recompute=True"), ("--transformer-impl transformer_engine", ""),
])  # fmt: skip
def test_what_makes_a_step_another_one_is_named(said: str, named: str) -> None:
    notes = arguments_from(f"--use-distributed-optimizer --world-size 8 --expert-model-parallel-size 8 {said}", QWEN).notes
    assert notes == ((f"Arguments that change the time and are not read: {named}.",) if named else ())


def test_a_batch_in_a_variable_does_not_matter_beside_that_of_the_layout() -> None:
    words = "--world-size 8 --expert-model-parallel-size 8 --global-batch-size $GBS"
    for own in ("m=4", "ga=4", "gbs=32"):
        assert layout_of(arguments_from(words, QWEN, own).layout).global_batch == 32
    with pytest.raises(ConfigError, match="global_batch_size: found '\\$GBS', expected a number: variables are not expanded"):
        arguments_from(words, QWEN)


def test_arguments_cut_experts_as_all_else_unless_they_say_how() -> None:
    """Megatron-LM sets the degree of experts to that of tensors where it is not said; a dense model has none."""
    words = "--tensor-model-parallel-size 4 --expert-model-parallel-size 8"
    for more, own, found in (("", "", 4), ("", "tp=2", 2), ("", "etp=1", 1), (" --expert-tensor-parallel-size 1", "", 1)):
        assert layout_of(arguments_from(words + more, QWEN, own).layout).etp == found
    assert layout_of(arguments_from("--tensor-model-parallel-size 4", load_whole("llama3-8b")).layout).etp == 1


def test_parameters_arrive_beside_passes_where_arguments_say_so() -> None:
    """Gradients alone overlapped: parameters did, too. Megatron-LM gathers them behind the optimizer without --overlap-param-gather."""
    words = "--use-distributed-optimizer --expert-model-parallel-size 8 --overlap-grad-reduce"
    for more, overlaps in (("", (True, False)), (" --overlap-param-gather", (True, True)), (SHARED, (True, True))):
        found = arguments_from(words + more, QWEN, "gpus=64")
        assert (found.overlap_dp, found.overlap_gather) == overlaps, more
    asked = load_whole("qwen3-30b"), Machine(load_cluster("hw-dgx-h200-x8")), layout_of("gpus=64,ep=8,m=8"), 4096, None, 1
    recipes = TrainingRecipe(), TrainingRecipe(overlap_gather=False), TrainingRecipe(overlap_dp=False)
    costs = [step_costs(*asked, recipe) for recipe in recipes]
    assert [one.times.late_gather for one in costs] == [False, True, True]
    assert [len(one.times.reduce[0]) > 1 for one in costs] == [True, True, False]
    (late,) = costs[1].times.gather[0]
    assert late / 1e12 == pytest.approx(29e9 / 8 * 2 * 7 / 8 / 47e9, rel=0.2)  # experts of a rank among 8 nodes, one NIC each


def test_a_python_recipe_is_read_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(PYTHON)
    layout = layout_of(arguments_from(f"{file}:pretrain", V3, "gpus=1024").layout)
    assert (layout.tp, layout.pp, layout.vpp, layout.global_batch) == (2, 8, 4, 8192)
    with pytest.raises(ConfigError, match=r"found 'big', expected FILE\.py:NAME with one of small, pretrain"):
        _read_settings(f"{file}:big")


NEMO = """
def pretrain_recipe(dir=None, num_nodes=4):
    trainer = make(tensor_parallelism=4, pipeline_parallelism=2, sequence_parallel=False, overlap_grad_reduce=False)
    data = run.Config(MockDataModule, sequence_length=8192, global_batch_size=512, micro_batch_size=1)
    cfg.mixed_precision = get_mixed_precision_config("bf16_with_mxfp8_mixed")
"""


def test_names_of_other_recipes_of_megatron_count(tmp_path: Path) -> None:
    """NeMo's degrees and the sequence of a data set were not read: a step of 4,096 tokens without parallelism, in BF16."""
    (tmp_path / "nemo.py").write_text(NEMO)
    found = arguments_from(f"{tmp_path}/nemo.py:pretrain_recipe", load_whole("llama3-8b"), "gpus=32")
    layout = layout_of(found.layout)
    assert (layout.tp, layout.pp, layout.global_batch, found.sequence, found.precision) == (4, 2, 512, 8192, "mxfp8")
    assert (len(found.notes), "--sequence-parallel" in found.notes[0], found.overlap_dp) == (1, True, False)


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {devices: 8}\nmodel:\n  micro_batch_size: 2\n  global_batch_size: 512\n  pipeline_model_parallel_size: 2\n"
        "  encoder_seq_length: 8192\n  activations_checkpoint_granularity: full\n  activations_checkpoint_method: uniform\n",
        "policy:\n  train_global_batch_size: 512\n  train_micro_batch_size: 2\n  max_total_sequence_length: 8192\n  megatron_cfg:\n"
        "    activation_checkpointing: true\n    pipeline_model_parallel_size: 2\n",
    ],
)
def test_recipes_of_nemo_and_nemo_rl_count(tmp_path: Path, text: str) -> None:
    """Their recomputation, and batch and sequence of NeMo RL, were left out without a word: one micro-batch a rank of 4,096 tokens."""
    (tmp_path / "recipe.yaml").write_text(text)
    found = arguments_from(f"{tmp_path}/recipe.yaml", load_whole("llama3-8b"), "gpus=32")
    layout = layout_of(found.layout)
    assert (layout.pp, layout.micro_batch, layout.global_batch, found.sequence, found.recompute) == (2, 2, 512, 8192, ("full",))
    assert not any("recompute" in note for note in found.notes)


DUMP = """
mixed_precision:
  fp8: hybrid
  fp8_recipe: blockwise
model:
  expert_model_parallel_size: 64
  fp8: null
  fp8_recipe: delayed
optimizer:
  exp_avg_dtype:
    _call_: false
    _target_: torch.bfloat16
"""
TYPES = """
def pretrain():
    cfg.model.expert_model_parallel_size = 64
    cfg.mixed_precision = MixedPrecisionConfig(bf16=True, fp8=None, fp8_recipe="tensorwise", params_dtype=torch.bfloat16)
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.optimizer.main_grads_dtype = torch.bfloat16
"""


def test_types_of_whole_recipes_are_those_that_count(tmp_path: Path) -> None:
    """What Megatron-Bridge writes of a run repeats precision under `model`, where it does not count, and names types by their target."""
    (tmp_path / "dump.yaml").write_text(DUMP)
    assert arguments_from(f"{tmp_path}/dump.yaml", V3, "gpus=64").precision == "fp8,state=fp8-moments"
    (tmp_path / "types.py").write_text(TYPES)
    assert arguments_from(f"{tmp_path}/types.py:pretrain", V3, "gpus=64").precision == "bf16,state=bf16-gradients"
    for moments, read in ((" --exp-avg-dtype bf16", True), ("", False)):  # no state has BF16 gradients beside FP32 moments
        found = arguments_from(f"--bf16 --expert-model-parallel-size 64 --grad-reduce-in-bf16{moments}", V3, "gpus=64")
        assert (found.precision.endswith("gradients"), "grad_reduce_in_bf16" in str(found.notes)) == (read, not read)


@pytest.mark.parametrize(("name", "text"), [
    ("titan.toml", "[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\ntensor_parallel_degree = 2\n"),
    ("ds.json", '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'),
])  # fmt: skip
def test_a_recipe_of_another_framework_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """A step of plain data parallelism came out, as if the file said it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"arguments: found none in '.*{name}', expected --name value, or a recipe, of Megatron"):
        arguments_from(str(tmp_path / name), V3, "gpus=32")
    (tmp_path / "automodel.yaml").write_text("step_scheduler: {global_batch_size: 512, local_batch_size: 4}\ndistributed: {ep_size: 8}\n")
    with pytest.raises(ConfigError, match="found local_batch_size, expected arguments or a recipe of Megatron; --layout takes"):  # no slip of global_
        arguments_from(str(tmp_path / "automodel.yaml"), V3, "gpus=32")


def test_a_preset_starts_from_other_presets(tmp_path: Path) -> None:
    file = tmp_path / "presets.py"
    file.write_text(
        "BASE = Config(expert_model_parallel_size=8, micro_batch_size=1)\nV1 = replace(BASE, num_gpus=64, pipeline_model_parallel_size=2)\n"
        "V2 = replace(V1, pipeline_model_parallel_size=1, global_batch_size=1024, steps=n())\nV3 = V2\nLOOP = LOOP\n"
    )  # fmt: skip
    for name in ("V2", "V3"):
        layout = layout_of(arguments_from(f"{file}:{name}", QWEN).layout)
        assert (layout.pp, layout.ep, layout.gpus, layout.micro_batches) == (1, 8, 64, 16)
    assert _read_settings(f"{file}:LOOP") == {}


def test_first_and_last_ranks_of_other_sizes() -> None:
    args = "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 13 --expert-model-parallel-size 8"
    assert [chunk.n_layers for chunk in chunks_of(V3, layout_of(arguments_from(args, V3).layout))] == [13, 16, 16, 16]
    inner = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 47"
    assert layout_of(arguments_from(inner, QWEN).layout).vpp == 1
    chunks = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 --expert-model-parallel-size 8 --num-layers 48"
    found = layout_of(arguments_from(chunks, load_whole("qwen3-30b"), "pp=4").layout)
    assert (found.pp, found.vpp) == (4, 2)  # chunks of 6 layers of the pipeline that counts, not of 3


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("--global-batch-size 64", "", "found global_batch_size and no number of GPUs, expected --layout gpus=N"),
        ("--tensor-model-parallel-size ${TP}", "", r"tensor_model_parallel_size: found '\$\{TP\}', expected a number"),
        ("--tensor-model-parallel-size two", "", "tensor_model_parallel_size: found 'two', expected an integer from 1 to 1048576"),
        pytest.param("--tensor-model-parallel-size " + "9" * 5000, "", "expected an integer from 1 to 1048576", id="5000 digits"),
        ("--tensor-model-paralel-size 2", "", "found tensor_model_paralel_size, expected tensor_model_parallel_size"),
        ("--num-layers 60", "", "num_layers: found 60, expected the 61 of deepseek-v3"),
        ("--mtp-num-layers 2", "", "mtp_num_layers: found '2', expected the 1 of deepseek-v3"),
        ("--mtp-num-layers 0", "", "mtp_num_layers: found '0', expected the 1 of deepseek-v3"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", "", "found 'optim', expected optim_grads_params"),
        ("--use-megatron-fsdp --num-gpus 8", "", r"found 'no_shard', expected optim_grads_params \(no_shard is Megatron-LM's default\)"),
        ("--zero-stage 3", "gpus=8", "arguments: found none in '--zero-stage 3', expected --name value, or a recipe, of Megatron"),
        ("--lr '1", "", "arguments: found No closing quotation, expected closed quotes"),
        ("--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout Et*31|t*30L", "", "found 2 chunks, expected a multiple of pp = 3"),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 2", "", "expected chunks of whole layers on 4 x 1 chunks"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 7", "", "expected a divisor of layers / pp = 30.5"),
    ],
)
def test_what_cannot_be_is_one_line(text: str, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments_from(text, V3, more)


def test_full_recomputation_is_read_unless_it_is_of_a_block_of_layers() -> None:
    full = "--use-distributed-optimizer --recompute-granularity full --mtp-num-layers 1 --recompute-num-layers 1 --recompute-method"
    assert arguments_from(f"{full} uniform", V3).notes == ()
    (note,) = arguments_from(f"{full} block", V3).notes
    assert "recompute_num_layers=1, recompute_method=block" in note
    with pytest.raises(ConfigError, match="mtp_num_layers: found '1', expected the 0 of qwen3-235b"):
        arguments_from("--mtp-num-layers 1", QWEN)


def test_arguments_with_dashes_in_values_and_equals() -> None:
    assert _arguments_of("run.py --lr=-1 --a b c --flag") == {"lr": "-1", "a": ("b", "c"), "flag": True}


def test_arrays_of_a_script_end_their_last_arguments(tmp_path: Path) -> None:
    """As in the examples of Megatron-LM; GPUs that variables say are not needed where the layout names them."""
    file = tmp_path / "train.sh"
    file.write_text(
        "GPUS=8\nDISTRIBUTED=(\n    --nproc_per_node $GPUS\n    --nnodes ${NODES:-1}\n)\nPARALLEL=(\n    --sequence-parallel\n    "
        "--use-distributed-optimizer\n    --expert-model-parallel-size 8\n)\ntorchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${PARALLEL[@]}\n"
    )
    found = arguments_from(str(file), QWEN, "gpus=64")
    assert (layout_of(found.layout).ep, layout_of(found.layout).gpus, found.notes) == (8, 64, ())
    with pytest.raises(ConfigError, match=r"nproc_per_node: found '\$GPUS', expected a number"):
        arguments_from(str(file), QWEN)


def test_a_file_that_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model:\n  just words\n")
    with pytest.raises(ConfigError, match="line 2: found 'just words', expected a key and a value"):
        _read_settings(str(tmp_path / "a.yaml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        _read_settings(str(tmp_path / "none.yaml"))


def test_sharded_weights_are_shared_by_all_data_parallel_ranks() -> None:
    args = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --context-parallel-size 2"
    assert layout_of(arguments_from(args, V3, "gpus=64,ep=8,gbs=64").layout).fsdp == 64
    assert layout_of(arguments_from(args, V3, "gpus=64,ep=8,gbs=64,fsdp=8").layout).fsdp == 8
