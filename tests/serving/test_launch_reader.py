"""Launch lines as input: what `serve` prints is read back as it was, lines of engines' own pages, and broken lines that end in one line."""

import random
from pathlib import Path
from typing import Any

import pytest

from dysharp import serve
from dysharp.errors import ConfigError
from dysharp.serving.launch_reader import ENGINES, known, read_launch
from dysharp.serving.layout import serve_layout_of

PRINTED: list[tuple[str, str, dict[str, Any]]] = [
    ("deepseek-v3", "dp=8,ep=8", {}),
    ("deepseek-v3", "tp=8", {"kv": "fp8"}),
    ("deepseek-v3", "tp=8,ep=8", {"kv": "bf16", "mtp": 1}),
    ("deepseek-v3", "tp=8,pp=2", {"cluster": "hw-dgx-h200-x2"}),
    ("deepseek-v3", "dp=16,ep=16,slots=16", {"cluster": "hw-dgx-h200-x2"}),
    ("deepseek-v3", "dp=16,ep=16", {"cluster": "hw-gb200-nvl72", "gpus": 16}),
    *(("deepseek-v3", "dp=8,ep=8", {"ep_system": system}) for system in ("trtllm-a2a", "deepep-ll", "deepep-normal", "allgather")),
    ("qwen3-30b", "dp=4,ep=4", {"slo": "ttft=2s,tpot=20ms"}),
    ("qwen3-30b", "tp=2", {"isl": 300, "osl": 3000, "users": 70}),
    ("qwen3-30b", "tp=2,ep=2", {"gpus": 2}),
    ("gpt-oss-120b", "tp=1", {}),
    ("llama3-70b", "tp=4", {"isl": 1000, "osl": 200}),
]


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("model", "layout", "asked"), PRINTED, ids=[" ".join([model, layout, *asked]) for model, layout, asked in PRINTED])
def test_what_is_printed_is_read_back(engine: str, model: str, layout: str, asked: dict[str, Any]) -> None:
    """Options that the line does not say are given again; TensorRT-LLM has one EP system, and no flag that says it."""
    asked = {"cluster": "hw-dgx-h200", "slo": "ttft=9s,tpot=200ms"} | asked
    first = serve(model, engine=engine, layouts=[layout], **asked)
    line = first.launch()
    unsaid = {"cluster", "slo", "isl", "osl", "users", "gpus"} | ({"ep_system"} if engine == "trtllm" else set())
    again = serve(launch=line, **{key: value for key, value in asked.items() if key in unsaid})
    assert again.launch() == line
    assert again.best[0].replica.layout == first.best[0].replica.layout == serve_layout_of(layout)
    assert again.sentences()[0] == first.sentences()[0]
    assert (again.formats, again.model, again.engine.name) == (first.formats, first.model, engine)
    for name in ("tokens_per_gpu", "served", "system", "memory"):
        assert getattr(again.best[0], name) == getattr(first.best[0], name)
    assert not [text for text in again.header if "not counted" in text]


def test_printed_pools_are_read_as_layouts() -> None:
    found = serve("deepseek-v3", "hw-dgx-h200-x2", engine="vllm", layouts=["tp=8,ep=8", "dp=8,ep=8"])
    lines = [line.partition(": ")[2] for line in found.starting() if line.startswith("Disaggregated, ")]
    assert found.disaggregated is not None
    assert [read_launch(line).layout for line in lines] == [found.disaggregated.prefill, found.disaggregated.decode]


SMALL = "vllm serve Qwen/Qwen3-30B-A3B"
V3 = "deepseek-ai/DeepSeek-V3"
REAL = [
    # docs.vllm.ai/projects/recipes, DeepSeek-V3
    (f"vllm serve {V3} \\\n  --trust-remote-code \\\n  --data-parallel-size 8 \\\n  --enable-expert-parallel",
     "dp=8,ep=8", {"ep_system": "allgather"}, "--trust-remote-code"),
    ("vllm serve deepseek-ai/DeepSeek-R1-0528 --tensor-parallel-size 8 --enable-expert-parallel", "tp=8,ep=8", {}, ""),
    # docs.vllm.ai, recipes of Qwen3-Next
    ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -sc '{\"method\": \"qwen3_next_mtp\", \"num_speculative_tokens\": 2}'", "tp=1", {"mtp": 2}, ""),
    # docs.vllm.ai, expert parallel deployment
    (f"export VLLM_ALL2ALL_BACKEND=deepep_low_latency\nVLLM_USE_DEEP_GEMM=1 vllm serve {V3}-0324 -dp=8 -ep",
     "dp=8,ep=8", {"ep_system": "deepep-ll"}, ""),
    # huggingface.co/deepseek-ai/DeepSeek-V3.2-Exp
    (f"python -m sglang.launch_server --model {V3}.2-Exp --tp 8 --dp 8 --enable-dp-attention", "dp=8", {}, ""),
    (f"python3 -m sglang.launch_server --model-path {V3} --tp 8 --enable-dp-attention --dp 8 --moe-a2a-backend deepep", "dp=8,ep=8",
     {"ep_system": "deepep"}, ""),
    (f"sglang serve --model-path {V3} --tp-size 16 --dp-size 4 --enable-dp-attention --speculative-algorithm NEXTN", "tp=4,dp=4", {"mtp": 3}, ""),
    ("python -m sglang.launch_server --model meta-llama/Meta-Llama-3-70B-Instruct --tp 4 --dp 2", "tp=4", {"gpus": 8}, ""),
    # NVIDIA/TensorRT-LLM, examples/serve/deepseek_r1_reasoning_parser.sh and docs/source/commands/trtllm-serve
    ("cat >./config.yml <<EOF\nenable_attention_dp: true\nkv_cache_config:\n    dtype: fp8\n    free_gpu_memory_fraction: 0.8\nmoe_config:\n"
     "    backend: DEEPGEMM\nEOF\n\ntrtllm-serve \\\n    deepseek-ai/DeepSeek-R1 \\\n    --host localhost --port 8000 \\\n    --max_batch_size 1024 "
     "--tp_size 8 --ep_size 8 --pp_size 1 \\\n    --config ./config.yml", "dp=8,ep=8", {"kv": "fp8"}, "--host, --port"),
    (r'echo -e "enable_attention_dp: true\nprint_iter_log: true" > config.yml; srun -N 2 --ntasks 16 bash -c "trtllm-llmapi-launch trtllm-serve '
     f'{V3} --tp_size 16 --ep_size 4 --kv_cache_free_gpu_memory_fraction 0.95 --config ./config.yml"', "dp=16,ep=4", {}, "--print_iter_log"),
    (f"MODEL={V3}; docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 --model $MODEL -tp 8 2>&1 | tee log", "tp=8", {}, ""),
    (f"{SMALL}-FP8 -sc '{{\"method\": \"ngram\", \"num_speculative_tokens\": 4}}' --no-enable-log-requests", "tp=1", {}, "--no-enable-log-requests"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "layout", "options", "quiet"), REAL, ids=[str(i) for i in range(len(REAL))])
def test_lines_of_engines_own_pages(line: str, layout: str, options: dict[str, Any], quiet: str) -> None:
    found = read_launch(line)
    assert found.layout == serve_layout_of(layout)
    assert found.options == {"mtp": 0} | options
    assert [text for text in found.lines if text.startswith("does not move")] == ([f"does not move this answer: {quiet}"] if quiet else [])


def test_a_line_says_the_rules_of_its_engine(tmp_path: Path) -> None:
    options, file = tmp_path / "o.yml", tmp_path / "line.sh"
    waits = "attention_dp_config: {enable_balance: true, timeout_iters: 30}"
    options.write_text(f"{waits}\nenable_attention_dp: true\nkv_cache_config:\n  enable_block_reuse: false\n")
    more = f"--config {options} --set disable_overlap_scheduler=true"
    file.write_text(f"TRTLLM_ENABLE_PDL=1 trtllm-serve {V3} --tp_size 4 --max_num_tokens 4k {more}\n")
    mine = read_launch(f"@{file}")
    rules = mine.engine
    assert (rules.gathered_steps, rules.step_tokens, rules.early, rules.overlaps, mine.prefixes) == (30, 4000, True, False, False)
    assert mine.layout == serve_layout_of("dp=4")
    other = read_launch(f"{SMALL} --max-num-seqs 7 --gpu-memory-utilization=0.5 --max-model-len 8K --no-async-scheduling --enforce-eager")
    assert (other.engine.most_requests, other.engine.memory_part, other.engine.overlaps, other.model.context) == (7, 0.5, False, 8192)
    assert other.lines[0] == "launch line: Qwen/Qwen3-30B-A3B (qwen3-30b), TP1, 7 requests of an attention group, 50% of the memory"
    assert other.lines[1:] == ("not in it, as vllm 0.33.0 starts: 8,192 tokens a step", "may move it and is not counted: --enforce-eager")
    sglang = "python -m sglang.launch_server --model Qwen/Qwen3-30B-A3B --enable-mixed-chunk --scheduler-recv-interval 10"
    assert [read_launch(sglang, hbm_bytes=size).engine.step_tokens for size in (48e9, 141e9, 192e9)] == [4096, 8192, 16384]
    assert (read_launch(sglang).engine.mixed, read_launch(sglang).engine.polled_steps) == (True, 10.0)
    flags = ("", " --disable-prefill-cuda-graph", " --disable-piecewise-cuda-graph")
    assert [read_launch(sglang + flag).engine.piecewise for flag in flags] == [True, False, False]
    assert [read_launch(SMALL, hbm_bytes=8e10, gpu=gpu).engine.step_tokens for gpu in ("h100-sxm", "a100-sxm")] == [8192, 2048]
    for start in (SMALL, sglang, T3):
        assert not any("--dtype" in line for kind in ("auto", "half", "bfloat16") for line in read_launch(f"{start} --dtype {kind}").lines)
        assert read_launch(f"{start} --dtype float32").lines[-1] == "may move it and is not counted: --dtype float32"


def test_checkpoints_have_precisions() -> None:
    """A packaged model whose checkpoint is named with its precision has others: GLM-4.6 is published in BF16 and, as GLM-4.6-FP8, in FP8."""
    named = {"nvidia/DeepSeek-R1-0528-FP4-v2": "fp4", "x/Qwen3-30B-A3B-Instruct-2507-FP8": "fp8", "x/Qwen3-32B-AWQ": "int4,weights=int4-128-zeros"}
    named |= {"zai-org/GLM-4.6": "bf16", "zai-org/GLM-4.5-Air": "bf16", "Qwen/Qwen3-Coder-480B-A35B-Instruct": "bf16"}
    named |= {"zai-org/GLM-4.6-FP8": "fp8-tensor"}  # compressed-tensors, by channel
    named |= {"moonshotai/Kimi-K2-Thinking": "int4-experts", "nvidia/Kimi-K2-Thinking-NVFP4": "fp4", "MiniMaxAI/MiniMax-M2": ""}
    named |= {"amd/DeepSeek-R1-0528-MXFP4": "mxfp4,dense=mxfp4,products=fp4", "x/Llama-3.3-70B-Instruct-quantized.w4a16": "int4,weights=int4-128"}
    for name, said in named.items():
        assert read_launch(f"vllm serve {name}").model.checkpoint == said
    longer = {"zai-org/GLM-4.6": 202752, "meta-llama/Llama-3.3-70B-Instruct": 131072, "moonshotai/Kimi-K2-Thinking": 262144}
    assert {name: read_launch(f"vllm serve {name}").model.context for name in longer} == longer
    assert read_launch(f"{SMALL} --quantization fp8").options["precision"] == "fp8-tensor"
    assert "precision" not in read_launch(f"vllm serve {V3} --quantization fp8").options  # the checkpoint's own
    assert "precision" not in read_launch("vllm serve x/Qwen3-235B-A22B-AWQ --quantization awq_marlin").options
    assert read_launch("vllm serve /models/mine -tp 8", "deepseek-v3").model.name == "deepseek-v3"
    assert read_launch("vllm serve nvidia/DeepSeek-R1-FP4", "deepseek-v3").model.checkpoint == "fp4"


def test_an_answer_for_a_line() -> None:
    found = serve(launch=f"{SMALL} -tp 2 --max-num-seqs 16 --no-enable-prefix-caching", users=100, requests="rate=2,n=40,isl=500,osl=50,shared=400")
    assert found.best[0].scenario.concurrency == 16
    assert "the 16 requests of an attention group that the launch line allows" in found.sentences()[3]
    assert found.replays[0].layout == "4 x TP2"
    assert found.replays[0].run.hit == 0  # no prefix is cached
    assert "With one replica lost 96 of 100 users stay within the limits; 16 GPUs lose none." in found.sentences()
    assert found.gpus_for_users_and_a_loss == 16
    assert any("is longer than the 4,000 of the launch line" in text for text in serve(launch=f"{SMALL} --max-model-len 4k").header)


@pytest.mark.parametrize("flags", ["-tp 16", "-tp 8 -dp 2"])
def test_a_line_of_more_gpus_than_the_machine_has(flags: str) -> None:
    with pytest.raises(ConfigError, match=r"found a launch line of 16 GPUs \(TP\d+\), expected a --cluster of as many: hw-dgx-h100 has 8"):
        serve(cluster="hw-dgx-h100", launch=f"vllm serve meta-llama/Meta-Llama-3-8B {flags}")


def test_a_long_replay_says_how_far_it_is() -> None:
    told: list[str] = []
    serve(launch=SMALL, gpus=1, requests="rate=90,n=2500,isl=50,osl=5", tick=lambda done, of, text: told.append(text))
    assert told[-2:] == ["1 x TP1: 1,000 of 2,500 requests", "1 x TP1: 2,000 of 2,500 requests"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"engine": "sglang"}, "--engine: found 'sglang' beside a launch line with vllm"),
        ({"mtp": 1}, "--mtp: found 1 beside a launch line with 0"),
        ({"layouts": ["tp=4"]}, "--layouts: found 'TP4' beside a launch line with TP2"),
        ({"kv": "bf16"}, "--kv: found 'bf16' beside a launch line with fp8"),
        ({"pools": "1:tp=4;1:tp=8"}, "--pools: found '1:tp=4;1:tp=8' beside a launch line"),
        ({"model": "deepseek-v3"}, "which is qwen3-30b, beside the model deepseek-v3"),
        ({"gpus": 1}, "2 GPUs do not divide 1"),
    ],
)
def test_an_option_that_contradicts(asked: dict[str, Any], said: str) -> None:
    line = f"{SMALL} -tp 2 --kv-cache-dtype fp8"
    if "gpus" in asked:
        assert said in serve(launch=line, **asked).sentences()[0]
        return
    with pytest.raises(ConfigError, match=r"expected one (of the two|model)") as raised:
        serve(launch=line, **asked)
    assert said in str(raised.value)
    assert serve(launch=line, engine="vllm", mtp=0, layouts=["tp=2"], model="qwen3-30b").best


@pytest.mark.parametrize("line", [
    f"""{SMALL} --speculative-config '{{"method": "eagle3", "model": "x", "num_speculative_tokens": 3}}'""",
    "printf '%s\\n' 'kv_cache_config: {enable_partial_reuse: false}' > o.yml && trtllm-serve Qwen/Qwen3-30B-A3B --extra_llm_api_options o.yml",
])  # fmt: skip
def test_names_inside_a_setting_are_not_taken_for_others(line: str) -> None:
    """A model is no misspelt method: what both begin with, the setting, does not count."""
    assert read_launch(line).lines[-1].startswith("may move it and is not counted: --")


S3, T3 = f"python -m sglang.launch_server --model-path {V3}", f"trtllm-serve {V3}"
BROKEN = [
    ("", "no commands of an engine"), (" \n ", "no commands"), ("vllm", "no commands"), ("vllm bench serve x", "no commands"),
    ("vllm serve", "no model"),
    ("vllm serve --tensor-parallel-size 8", "no model"), ("vllm serve $MODEL", "found '$MODEL'"), ("vllm serve $(cat model)", "expected one model"),
    (f"vllm serve {V3} x", "expected one model"), (f"vllm serve {V3} --model Qwen/Qwen3-30B-A3B", "expected one value"),
    ("vllm serve no/such-model", "not packaged"), (f"{SMALL}; {SMALL}", "found 2 commands"), (f"vllm serve '{V3}", "closed quotes"),
    (f"{SMALL} --tensor-parallel-sise 8", 'did you mean "--tensor-parallel-size"'), (f"{SMALL} --tp-size 8", "a flag of sglang and trtllm"),
    (f"{SMALL} --mem-fraction-static 0.9", "a flag of sglang, expected a flag of vllm"), (f"{S3} --max-num-seqs 8", "a flag of vllm, expected"),
    (f"{T3} --enable-expert-parallel", "a flag of vllm"), (f"{SMALL} --frobnicate", "found --frobnicate, expected a flag of vllm"),
    (f"{SMALL} -tp 0", "found '0', expected a whole number from 1"), (f"{SMALL} -tp -1 -tp 2", "expected one value"),
    (f"{SMALL} -tp", "found 'true'"),
    (f"{SMALL} -tp eight", "found 'eight'"), (f"{SMALL} -tp 1e9", "found '1e9'"), (f"{SMALL} -tp 2.5", "found '2.5'"),
    (f"{SMALL} -tp $TP", "found '$TP'"),
    (f"{SMALL} -tp 99999999999999999999", "found '99"), (f"{SMALL} -tp 5000", "found 5000, expected 1 to 4096"), (f"{SMALL} -tp ٣", "whole number"),
    (f"{SMALL} -tp 2 --tensor-parallel-size 4", "found -tp 2 and --tensor-parallel-size 4"), (f"{SMALL} --max-num-seqs inf", "found 'inf'"),
    (f"{SMALL} --gpu-memory-utilization 1.5", "a part above 0"), (f"{SMALL} --gpu-memory-utilization 90%", "a part above 0"),
    (f"{SMALL} --gpu-memory-utilization nan", "a part above 0"), (f"{SMALL} --speculative-config '{{'", "malformed JSON"),
    (f"{SMALL} --speculative-config '{{\"method\": \"mtp\", \"num_speculative_token\": 1}}'", "expected --speculative-config.num-speculative-tokens"),
    (f"{SMALL} -sc '{{\"method\": \"mtp\"}}'", "the number of draft tokens"),
    (f"{SMALL} -sc '{{\"num_speculative_tokens\": 1}}'", "the method beside it"),
    (f"{SMALL} -sc '{{\"a\":{'[' * 3000}{']' * 3000}}}'", "malformed JSON"),
    (f"{SMALL} -sc '{{\"method\": \"mtp\", \"method\": \"x\"}}'", "twice"), (f"{S3} --tp 8 --dp 3 --enable-dp-attention", "a divisor of 8 GPUs"),
    (f"{S3} --tp 8 --ep 3", "expected a divisor of tp x dp = 8"), (f"{S3} --tp 8 --disaggregation-mode prefill", "a server of prompts and decoding"),
    (f"{S3} --tp 8 --speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-num-draft-tokens 8", "expected 3: 2 steps and one"),
    (f"{S3} --tp 8 --pp 2 --dp 8 --enable-dp-attention --speculative-algorithm EAGLE", "excludes attention groups"),
    (f"{T3} --tp_size 8 --config none.yml", "none.yml: cannot be read"), (f"{T3} --tp_size 8 --config /dev/zero", "not a regular file"),
    (f"printf 'enable_attention_dpp: true' > a.yml; {T3} --config a.yml", "found --enable_attention_dpp"),
    (f"printf 'x' > a.yml; {T3} --config a.yml", "expected a key and a value"), (f"printf 'a: {{b' > a.yml; {T3} --config a.yml", "found --a"),
    (f"printf 'max_batch_size: 4' > a.yml; {T3} --max_batch_size 8 --config a.yml", "expected one value"), ("@/no/such/file", "cannot be read"),
    (f"{T3} --set tp_size", "--tp_size: found ''"), (f"{T3} --config a --config a", "cannot be read"), (f"{SMALL} \x00 -tp 2", "expected one model"),
    (f"{SMALL} " + "--x " * 70000, "expected at most 65536"), ("\ud800vllm serve x", "no commands"), (f"{SMALL} --= 3", "found"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "said"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_a_broken_line_is_one_line(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_launch(line)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lines_that_were_changed_at_random_are_read_or_refused() -> None:
    """A few characters left out, doubled or replaced: an answer or one line, in a moment."""
    draw, lines = random.Random(7), [line for line, *_ in REAL]
    refused = 0
    for _ in range(400):
        text = list(draw.choice(lines))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text))
            text[at : at + draw.randint(0, 4)] = draw.choice([*"'\"{}[]=$\\\n\t-#&|;<>0k:\x00\u0663", "--", "<<A", "$(", "-tp 3 "])
        try:
            read_launch("".join(text))
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 400


def test_every_flag_is_known_once() -> None:
    for name in ENGINES:
        table = known()[name]
        quiet, beside = table["quiet"].split(), table["beside"].split()
        assert len({*quiet, *beside}) == len(quiet) + len(beside)
        assert not {*quiet, *beside} & {*table["reads"], *table["aliases"]}
