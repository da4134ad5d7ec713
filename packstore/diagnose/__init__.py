"""Finds the limit of training, reports installed software, makes a demo dataset. Imports any room but cli."""
