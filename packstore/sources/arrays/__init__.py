"""Sources whose samples lie in named arrays: HDF5, npz and npy, Zarr, N5; and MNIST's idx files."""
