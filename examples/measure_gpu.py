"""`dysharp measure` as a file to run: python examples/measure_gpu.py -o mine.csv, or with torchrun --nproc-per-node 8 in front."""

import sys

from dysharp.cli import main

if __name__ == "__main__":
    main(["measure", *sys.argv[1:]])
