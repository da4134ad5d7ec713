"""Formats of annotations, a file each: a table of fields over the readers of this folder."""
