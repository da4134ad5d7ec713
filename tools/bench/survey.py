#!/usr/bin/env python3
"""What recognising and surveying a folder of many small files costs: processor time and memory, each in a new process.

python tools/bench/survey.py [--files 500000] [--folder DIR] [--other SITE] [--runs 3]

SITE is a folder in which another version is installed (`pip install --no-deps --target SITE CHECKOUT`): both are then
timed in turn. The files lie in a temporary folder, best in memory (`--folder /dev/shm`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import json, resource, sys, time
from pathlib import Path
from packstore.sources import open_source
found = []
for _ in range(2):
    begin = time.process_time(); source = open_source(Path(sys.argv[1]))
    opened = time.process_time(); survey = source.survey()
    found += [opened - begin, time.process_time() - opened]
print(json.dumps([*found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, survey.records]))
"""
IN_A_FOLDER = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=500_000)
    parser.add_argument("--folder")
    parser.add_argument("--other")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    sites = {"this": str(Path(__file__).parents[2])} | ({"other": options.other} if options.other else {})
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        for number in range(options.files):
            folder = Path(root, f"class-{number // IN_A_FOLDER:04}")
            folder.mkdir(exist_ok=True)
            (folder / f"{number:08}.jpg").write_bytes(b"\xff\xd8\xff\xd9")
        print("| version | open, s | survey, s | open again | survey again | MiB at most |\n|---|---|---|---|---|---|")
        for _ in range(options.runs):
            for name, site in sites.items():
                environment = os.environ | {"PYTHONPATH": site, "PYTHONSAFEPATH": "1"}
                command = [sys.executable, "-c", CODE, root]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                *seconds, memory, records = json.loads(done.stdout)
                assert records == options.files
                print(f"| {name} | {' | '.join(f'{each:.2f}' for each in seconds)} | {memory:.0f} |")


if __name__ == "__main__":
    main()
