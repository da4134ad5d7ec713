"""Reads record files of frameworks: records follow each other, and each is a sample."""
