"""The column types: a file for several of a kind, and a line in the registry for each.

- ``base.py``: the column, and the base class of types.
- ``forms.py``: forms of values: stored, in batches, drawn, moved with their image, faulty, as JSON for the page.
"""
