"""Stores at URLs: read through the cache, written as objects that never change."""
