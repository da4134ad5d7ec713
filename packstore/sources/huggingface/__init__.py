"""Hugging Face's layouts: Parquet, Arrow as ``save_to_disk`` writes it, image folders with metadata; and cards.

Names of splits, numbers of classes and order of samples are as in their own library
(https://github.com/huggingface/datasets, 5.2).
"""
