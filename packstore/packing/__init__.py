"""Packing: plan a conversion, run it, go on after an interrupt. Imports core, images, stores and sources."""
