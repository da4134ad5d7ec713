"""packstore packs image datasets once, proves that nothing was lost, and feeds them to a model fast.

The public names are loaded on first use, so that ``import packstore`` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
