"""Tables in text files, see :mod:`packstore.sources.text_table`."""

from packstore.sources.text_table import TextTable as TextTable
