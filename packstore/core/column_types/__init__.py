"""The column types: a file for each, or for several of a kind, and a line in the registry.

``base.py`` has the column itself, and the questions that a type answers. ``geometry.py`` has what moves a type's rows,
``canvas.py`` what its values are drawn on.
"""
