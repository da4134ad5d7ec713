"""Folders whose images are numpy's ``.npy`` files."""

from __future__ import annotations

from copy import copy

from packstore.sources.contents import list_contents
from packstore.sources.listing import ARRAY
from packstore.sources.tree import Tree


def accept_arrays(tree: Tree) -> Tree:
    """Returns the tree, or a copy in which ``.npy`` files are images if it has them and nothing else that is one.

    Beside images such files hold masks, depth or features of these."""
    if tree.has_arrays or tree.holds_images("", tree.above):
        return tree
    if not any(ARRAY in folder.others for folder in list_contents(tree).folders.values()):
        return tree
    found = copy(tree)
    found.has_arrays = True
    return found
