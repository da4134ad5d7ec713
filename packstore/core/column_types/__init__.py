"""The column types: a file for each, or for several of a kind, and a line in the registry.

- ``base.py``: the column, and the base class of types.
- ``geometry.py``: what moves rows with their images.
- ``canvas.py``: what values are drawn on.
- ``shown.py``: values as JSON, cut to a size for the page.
- ``faults.py``: faulty rows that an audit reports.
"""
