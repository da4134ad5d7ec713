"""HDF5: write, read, check and scavenge."""
