"""Code that the adapters of serving engines share: a request's cuts, the decision how much to
splice, the walk over recomputed rows in bounded time slices, and background storing.

No engine is imported here. `cuts`, `splices`, `prices`, `finding`, `settings` and `tally` need
the standard library only.
"""
