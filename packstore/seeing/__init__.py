"""Stores for the eye: drawings over images, contact sheets, charts, what a notebook shows."""
