"""Recipes by name, and the tables of policies."""
