"""LMDBs of others, a kind each: folder2lmdb, OCR, BasicSR, Caffe and LSUN.

Which of them one is, its first keys and values tell. Its pages are read as those of packstore's own stores are, with
bounds checked, and not by LMDB.
"""
