"""Examples of every command, for `--help` and the reference page."""

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "advise": (
        "dysharp advise deepseek-v3 --cluster hw-dgx-h100 --tokens 128",
        "dysharp advise my_config.json --cluster hw-gb200-nvl72 --routing my_trace.npz",
    ),
    "calibrate": ("dysharp calibrate mine.csv --base hw-dgx-h100 -o mine.toml",),
    "capture": ("dysharp capture MODEL_DIR --text corpus.txt -o mine.npz",),
    "compare": (
        "dysharp compare",
        "dysharp compare --model L-8 --tokens 512 --plot layer.svg",
        "dysharp compare --systems deepep,deepep-ll --cluster hw-dgx-h100 --model deepseek-v3 --tokens 128",
        "dysharp compare --cluster paper-nvl72,link_GBps=1800 --gpus 64 --tokens 64",
    ),
    "emulate": (
        "dysharp emulate dysharp --inject evict --dump",
        "dysharp emulate deepep --block gated --dtype bfloat16 --backward",
        "dysharp emulate --inject help",
    ),
    "list": ("dysharp list systems", "dysharp list options", "dysharp list cluster-keys"),
    "model": (
        "dysharp model deepseek-v3",
        'dysharp model deepseek-v3 --layout "pp=4,vpp=4,ep=64,gpus=256,stages=Et*3|(t*4|)*14t*2mL" --recompute mla_up_proj',
        "dysharp model llama3-70b --layout tp=4,pp=4,vpp=5,gpus=64 --gpu h100-sxm",
    ),
    "query": ('dysharp query "describe points"', 'dysharp query "select system, min(time_us) from points group by system" --csv'),
    "report": ("dysharp compare --json > runs.json", "dysharp report runs.json -o runs.html"),
    "reproduce": ("dysharp reproduce fig15 -j 2", "dysharp reproduce --all --report figures.md"),
    "routing": ("dysharp routing deepseek-v2-lite --gpus 8,32", "dysharp routing lognormal:0.65 --model deepseek-v3"),
    "routing describe": ("dysharp routing describe my_trace.npz --gpus 8,16",),
    "routing import": ("dysharp routing import --format help", "dysharp routing import dump.npy --experts 64 -o mine.npz"),
    "plan": (
        "dysharp plan qwen3-30b --cluster hw-dgx-h100-x2 --gpus 16 --batch 64 --what-if --arguments megatron-lm",
        "dysharp plan pangu-ultra-moe --cluster paper-ascend-910b --gpus 6144 --try pp=8,16 --try vpp=1,2,4",
        "dysharp plan pangu-ultra-moe --vary layers=61,66 --cluster paper-ascend-910b --gpus 6144 --json",
    ),
    "routing lint": ("dysharp routing lint my_trace.npz --gpus 8",),
    "routing placement": ("dysharp routing placement eplb.npz --gpus 8 -o mine.json",),
    "rtl": (
        "dysharp rtl reduction-table --check 200",
        "dysharp rtl all --prove",
        "dysharp rtl al-tlb --area",
        "dysharp rtl reduction-table --cluster paper-nvl72 -o table.v",
    ),
    "run": (
        "dysharp run dysharp --model L-8 --set dysharp.combine_window=64",
        "dysharp run deepep --cluster hw-dgx-h100 --model deepseek-v3 --tokens 4096 --set n_sm=24",
        "dysharp run dysharp --gpus 8 --tokens 64 --fidelity packet",
    ),
    "serve": (
        "dysharp serve deepseek-v3 --cluster hw-dgx-h200-x2 --slo tpot=50ms",
        'dysharp serve qwen3-235b --cluster hw-dgx-b200 --isl 1024 --osl 1024 --layouts "tp=8;tp=4;dp=8,ep=8" --users 500',
    ),
    "step": (
        "dysharp step deepseek-v2-lite --layout ep=8,m=4 --cluster hw-dgx-h100 --systems deepep,megatron-a2a",
        'dysharp step deepseek-v2-lite --megatron-args "--expert-model-parallel-size 8" --layout m=4 --report step.html',
    ),
    "study": ("dysharp sweep --example > my.toml", "dysharp study my.toml --folder mine -j 2"),
    "sweep": ("dysharp sweep --example > my.toml", "dysharp sweep my.toml -j 2 --csv my.csv"),
    "trace": (
        "dysharp trace dysharp --gpus 8 --tokens 256 -o run.perfetto-trace",
        "dysharp trace deepep --model L-8 --from 500 --to 520 -o part.perfetto-trace --plot part.svg",
        "dysharp trace dysharp --model L-8 -o whole.perfetto-trace.gz",
    ),
    "validate": ("dysharp validate", "dysharp validate --data mine.csv", "dysharp validate --data mine.csv --cluster mine.toml"),
}
"""Command -> lines that can be typed. The help of `network` has examples of its own."""


def add_examples(group: click.Group, above: str = "") -> None:
    """Put the examples of each command at the end of its help."""
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        if path in EXAMPLES:
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
        if isinstance(command, click.Group):
            add_examples(command, path)
