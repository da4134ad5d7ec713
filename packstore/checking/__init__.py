"""Checks stores: verify, compare with a source, repair, salvage, audit. Imports packing and the rooms that it may
import.
"""
