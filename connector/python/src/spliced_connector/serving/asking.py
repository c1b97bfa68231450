"""Looks a prompt up and asks what to do with it, in one round trip where the daemon can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spliced_connector.client import Advice, Lookup, Match, Model, Query, misses


def match_and_advise(
    model: Model, lookup: Lookup, query: Callable[[Match | None], Query], at_once: bool = True
) -> tuple[Match, Advice | None]:
    """Returns what was found and what is advised; None without advice.

    query: returns the question about a prompt of which this was found; None: the daemon looks it
    up before it advises, and the question is about what it will find. at_once: whether such a
    question can be asked. A daemon that does not answer is waited for once.
    """
    at_once = at_once and model.looks_up and lookup.fits
    advice = model.advise(replace(query(None), lookup=lookup)) if at_once else None
    if advice is not None and advice.found is not None:
        return advice.found, advice
    if at_once and model.silent:
        return misses(len(lookup.keys), "the daemon did not answer in time"), None
    found = model.match(
        lookup.positions, lookup.prefixes, lookup.keys, lookup.accept, others=lookup.others
    )
    if at_once or found.trouble:
        return found, advice  # a prompt that gets no advice is looked up all the same
    return found, model.advise(replace(query(found), match=found))
