"""Looks a prompt up and asks what to do with it, in one round trip where the daemon can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spliced_connector.client import Advice, Lookup, Match, Model, Query


def match_and_advise(
    model: Model, lookup: Lookup, query: Callable[[Match | None], Query], at_once: bool = True
) -> tuple[Match, Advice | None]:
    """Returns what was found and what is advised; None without advice.

    query: returns the question about a prompt of which this was found; None: the daemon looks it
    up before it advises, and the question is about what it will find. at_once: whether such a
    question can be asked.
    """
    if not (at_once and model.looks_up and lookup.fits):
        found = _match(model, lookup)
        return found, model.advise(replace(query(found), match=found))
    advice = model.advise(replace(query(None), lookup=lookup))
    if advice is not None and advice.found is not None:
        return advice.found, advice
    return _match(model, lookup), advice  # a prompt that gets no advice is looked up all the same


def _match(model: Model, lookup: Lookup) -> Match:
    if not lookup.keys:
        return model.match(lookup.positions, lookup.prefixes)
    return model.match(
        lookup.positions, lookup.prefixes, lookup.keys, lookup.accept, others=lookup.others
    )
