"""Exports of labels in the formats of tools that annotate and train: a file beside each image, or one for many."""
