"""Shared by the adapters of serving engines: a request's cuts, the savings of a splice, the walk
over its joins in bounded time slices, and background storing.

No engine is imported here. `cuts`, `splices`, `prices`, `finding`, `settings` and `tally` need
the standard library only.
"""
