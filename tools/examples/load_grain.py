#!/usr/bin/env python3
"""Loads batches with grain, whose worker processes open the store for themselves.

packstore convert packstore-demo pixels.lmdb --encoding uint8 --size 64
pip install grain
python tools/examples/load_grain.py pixels.lmdb [--workers 2]
"""

import argparse
import sys

import grain.python as grain
from absl import flags

from packstore import PackedDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    flags.FLAGS(sys.argv[:1])  # grain's workers ask for its flags, which absl.app.run() parses elsewhere
    source = PackedDataset(options.store, "train", output="numpy")
    loader = grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(len(source), grain.ShardByJaxProcess(), shuffle=True, num_epochs=1, seed=0),
        operations=[grain.Batch(options.batch_size, drop_remainder=True)],
        worker_count=options.workers,
    )
    for images, labels in loader:
        print(images.shape, images.dtype, labels.shape)


if __name__ == "__main__":
    main()
