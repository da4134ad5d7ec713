"""Annotation formats as generators, by family.

- :mod:`.tools` and :mod:`.via`: formats of labelling tools
- :mod:`.videos`: frames with tracks
- :mod:`.texts`: text in scenes, receipts and forms
- :mod:`.published`: formats of published sets and of training code

:mod:`.source` and :mod:`.documents` find the files and read them, :mod:`.columns` declares columns from what generators
yield, :mod:`.shapes` has what they yield, and :mod:`.parsing` what they parse with.
"""
