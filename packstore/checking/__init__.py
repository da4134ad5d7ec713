"""Checking stores: verify, compare with a source, repair, salvage. Imports packing and what that may import."""
