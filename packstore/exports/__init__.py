"""Exports: stores written in the formats of others, one file a kind. May import ``core``, ``images``, ``stores``."""
