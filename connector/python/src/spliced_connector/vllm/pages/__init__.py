"""Shared pages: one copy of a segment's keys and values in vLLM's cache for all requests that have
it, at whatever position (MEPIC sections 4 and 5).

A spliced request's blocks hold its private tokens only, one behind the other: the seams, and what
stands in no segment. The interiors of its segments lie in bins, blocks that several requests point
into, with keys as they are stored: turned to their positions within the segment. Attention turns
the query by R(-start) once per run in place of the keys.

`bins` says what lies where, `manager` gives vLLM's block manager this account of a request's
blocks, `backend` is the attention, `placed` what the two halves of a worker share. vLLM is changed
by its own registries only: `register_kv_cache_spec` and `register_backend`.
"""
