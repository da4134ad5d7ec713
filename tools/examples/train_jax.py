#!/usr/bin/env python3
"""Trains a linear classifier with JAX on a store of pixels.

packstore convert cifar-10-python.tar.gz cifar.pth --encoding uint8
pip install "jax[cpu]"
python tools/examples/train_jax.py cifar.pth [--epochs 3]
"""

import argparse

import jax
import jax.numpy as jnp

from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip


def loss_of(weights, images, labels):
    logits = images.reshape(len(images), -1) @ weights
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@jax.jit
def step(weights, images, labels):
    loss, gradient = jax.value_and_grad(loss_of)(weights, images, labels)
    return weights - 0.01 * gradient, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    dataset = PackedDataset(options.store, "train")
    # drop_last: jit compiles anew for a batch of another size.
    loader = PackedLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        augment=RandomHorizontalFlip(),
        normalize="imagenet",
        channels_last=True,
        output="numpy",
    )
    weights = None
    for epoch in range(options.epochs):
        for images, labels in loader:  # float32 (B, H, W, 3) and int64 (B,)
            if weights is None:
                weights = jnp.zeros((images[0].size, len(dataset.classes)))
            weights, loss = step(weights, images, labels)
        print(f"epoch {epoch}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
