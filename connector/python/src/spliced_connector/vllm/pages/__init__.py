"""Shared pages: one copy of a segment's keys and values in vLLM's cache for all requests that
have it, at any position (MEPIC sections 4 and 5).

A spliced request's own blocks contain only its private tokens, one after the other: the seams, and
tokens outside segments. The interiors of its segments are in bins: blocks that several requests
use. Keys in bins are in their stored form, rotated to their positions within the segment. Attention
does not rotate them further. Instead, it rotates the query by R(-start), once per run (the part of
a segment that lies in one bin).

`bins` tracks the contents of bins. `manager` makes vLLM's block manager count a request's blocks
accordingly. `backend` is the attention. `placed` is the record that the connector in a worker and
the attention share. vLLM is changed only through its own registries: `register_kv_cache_spec` and
`register_backend`.
"""
