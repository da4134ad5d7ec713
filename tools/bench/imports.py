#!/usr/bin/env python3
"""What an import costs: seconds and memory of ``import packstore``, of torch, and of the first batch as NumPy arrays.

python tools/bench/imports.py STORE [--runs 5]

Each step is timed in fresh processes; medians. Memory is the peak of the process.
"""

import argparse
import json
import statistics
import subprocess
import sys

BEGIN = "import json, resource, sys, time; start = time.perf_counter(); "
END = (
    "; print(json.dumps([time.perf_counter() - start, "
    "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 'torch' in sys.modules]))"
)
BATCH = (
    "from packstore import PackedDataset, PackedLoader; "
    "batch = next(iter(PackedLoader(PackedDataset({store!r}, 'train'), 32, output='numpy')))"
)
STEPS = {
    "nothing": "pass",
    "import numpy": "import numpy",
    "import packstore": "import packstore",
    "packstore.open, 32 records": "import packstore; s = packstore.open({store!r}); b = [s.read(i) for i in range(32)]",
    "import torch": "import torch",
    "from packstore import PackedLoader": "from packstore import PackedLoader",
    "first batch of 32 as arrays": BATCH,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {name: [] for name in STEPS}
    for _ in range(options.runs):  # in turn
        for name, code in STEPS.items():
            line = BEGIN + code.format(store=options.store) + END
            done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    print("| step | seconds | MiB at most | torch |\n|---|---|---|---|")
    for name, runs in found.items():
        seconds, memory, torch = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"| {name} | {seconds:.2f} | {memory:.0f} | {'loaded' if torch else '-'} |")


if __name__ == "__main__":
    main()
