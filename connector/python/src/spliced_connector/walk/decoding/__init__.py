"""Decoding that keeps rows of recent tokens next to a state: drafts, which may be dropped, and
turns, which are stored as rows."""
