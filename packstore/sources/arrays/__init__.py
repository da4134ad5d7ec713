"""Sources whose samples are rows of named arrays: HDF5, npz and npy, Zarr, N5, MATLAB; and MNIST's idx files."""
