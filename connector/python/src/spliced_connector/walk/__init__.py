"""Walks over a model's layers: the rows of a prompt that a cache cannot give."""
