"""Segments that engines of several nodes compute for each other: the scheduler's half.

combiner    has other nodes compute what requests miss
jobs        has this engine compute what other nodes miss
"""
