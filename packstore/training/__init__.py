"""Stores to batches: the dataset, the loader, augmentations, the order of an epoch. Imports core, images and stores."""
