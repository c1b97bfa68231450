"""Segments that engines of several nodes compute for each other: the scheduler's half.

combiner    asks other nodes to compute segments that requests miss
jobs        makes this engine compute segments that other nodes miss
"""
