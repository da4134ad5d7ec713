"""LMDBs of other programs, one kind a file: folder2lmdb, OCR, BasicSR, Caffe and LSUN.

The first keys and values of an LMDB tell its kind. Pages are read with the bounds-checked reader of packstore's own
stores, not by LMDB.
"""
