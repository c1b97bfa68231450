"""Shared pages: one copy of a segment's keys and values in vLLM's cache for all requests that
have it, at any position (MEPIC sections 4 and 5).

A spliced request's blocks contain only its private tokens, one after the other: the seams, and
tokens outside segments. The interiors of its segments are in bins, blocks that several requests
point into, with keys in their stored form: rotated to their positions within the segment. Instead
of the keys, attention rotates the query by R(-start) once per run.

`bins` tracks the content of bins, `manager` gives vLLM's block manager this account of a
request's blocks, `backend` is the attention, `placed` is shared by the two halves of a worker.
vLLM is changed by its own registries only: `register_kv_cache_spec` and `register_backend`.
"""
