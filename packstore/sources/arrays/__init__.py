"""Sources whose samples are rows of arrays: HDF5, npz and npy, Zarr, N5, MATLAB; and published sets of pixels: idx
files (MNIST), CIFAR, STL-10, SVHN and downsampled ImageNet."""
