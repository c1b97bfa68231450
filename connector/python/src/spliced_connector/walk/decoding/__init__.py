"""Tokens that are decoded beside the rows of earlier ones, and rows that are kept of them."""
