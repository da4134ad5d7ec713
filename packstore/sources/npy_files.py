"""Makes numpy's ``.npy`` files the images of a folder."""

from __future__ import annotations

from copy import copy

from packstore.sources.contents import list_contents
from packstore.sources.listing import ARRAY
from packstore.sources.tree import Tree


def accept_arrays(tree: Tree) -> Tree:
    """Returns a tree in which ``.npy`` files are images. If the tree has images, or no such files, returns the tree
    itself; else a copy."""
    # Beside images, such files contain masks, depth or features.
    if tree.has_arrays or tree.holds_images("", tree.above):
        return tree
    if not any(ARRAY in folder.others for folder in list_contents(tree).folders.values()):
        return tree
    array_tree = copy(tree)
    array_tree.has_arrays = True
    return array_tree
