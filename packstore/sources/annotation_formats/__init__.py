"""Formats of annotations, one a file; :mod:`.source` and :mod:`.documents` have their base classes."""
