"""What the adapters of serving engines share: a request's cuts, what a splice of it saves, the walk
over its joins in bounded pieces of time, and what is stored behind the engine's back.

No engine is imported here. `cuts`, `splices`, `prices`, `finding`, `settings` and `tally` need the
standard library only.
"""
