#!/usr/bin/env python3
"""What an import costs: seconds and memory of ``import packstore``, of torch, and of the first batch as NumPy arrays.

python tools/bench/imports.py [STORE] [--runs 5] [--folder FOLDER]

Each step is timed in fresh processes; medians. Memory is the peak of the process. With a folder of images, also prints
what ``packstore convert`` of it loads, and its least CPU time (user and system). Exits with 1 if it loads more than 150
modules of packstore, or calls functions in more than 110 of their files.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import run_process

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
MODULES, FILES = 150, 110
"""Most modules of packstore that converting a folder of images may load, and most files whose functions it may call."""
CONVERSION = """
import json, sys, threading
called = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_name[0] != "<":  # no module, class or comprehension
        called.add(code.co_filename)
from packstore.cli import main
sys.setprofile(note)
threading.setprofile(note)
try:
    main(["convert", {source!r}, {out!r}, "--quiet"])
except SystemExit as end:
    assert not end.code
sys.setprofile(None)
loaded = [each.__file__ for name, each in sys.modules.items() if name.partition(".")[0] == "packstore"]
print(json.dumps([len(loaded), len(called & set(loaded))]))
"""


def measure_conversion(folder: str, runs: int) -> bool:
    """Prints what a conversion loads, calls and costs. Tells if it keeps within the limits."""
    with tempfile.TemporaryDirectory() as scratch:
        code = CONVERSION.format(source=folder, out=f"{scratch}/counted.lmdb")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        modules, files = json.loads(done.stdout)
        command = [sys.executable, "-m", "packstore", "convert", folder]
        outs = [str(Path(scratch) / f"{number}.lmdb") for number in range(runs)]
        seconds = min(run_process([*command, out, "--quiet"]).cpu for out in outs)
    print(f"\nconvert {folder}: {modules} modules, functions of {files} files, {seconds:.2f} s of CPU time")
    return bool(modules <= MODULES and files <= FILES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.store is not None:
        measure_steps(options.store, options.runs)
    if options.folder is not None and not measure_conversion(options.folder, options.runs):
        sys.exit(1)


def measure_steps(store: str, runs: int) -> None:
    """Prints a table of the steps."""
    found: dict[str, list[list[float]]] = {name: [] for name in STEPS}
    for _ in range(runs):  # in turn
        for name, code in STEPS.items():
            line = BEGIN + code.format(store=store) + END
            done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    print("| step | seconds | MiB at most | torch |\n|---|---|---|---|")
    for name, measured in found.items():
        seconds, memory, torch = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"| {name} | {seconds:.2f} | {memory:.0f} | {'loaded' if torch else '-'} |")


if __name__ == "__main__":
    main()
