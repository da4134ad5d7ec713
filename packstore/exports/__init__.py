"""Exports: write stores in foreign formats, a file for each kind. May import ``core``, ``images``, ``stores``."""
