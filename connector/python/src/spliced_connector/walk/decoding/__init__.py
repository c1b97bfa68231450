"""Tokens that are decoded next to the rows of earlier ones, and the rows that are stored of
them."""
