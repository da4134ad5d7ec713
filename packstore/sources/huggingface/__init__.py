"""Hugging Face's layouts: Parquet, Arrow as ``save_to_disk`` writes it, image folders with metadata; and cards.

What their own library (https://github.com/huggingface/datasets, 5.2) does is the measure: names of splits, numbers of
classes, order of samples.
"""
