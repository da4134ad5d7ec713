"""Errors, the manifest, columns, progress, parallel maps, files. Imports numpy and xxhash alone."""
