"""LMDB: write, read, check and scavenge."""
