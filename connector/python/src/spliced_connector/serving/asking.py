"""Looks a prompt up and asks for advice about it, in one round trip if the daemon supports that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spliced_connector.client import Advice, Lookup, Match, Model, Query, misses


def match_and_advise(
    model: Model, lookup: Lookup, query: Callable[[Match | None], Query], at_once: bool = True
) -> tuple[Match, Advice | None]:
    """Returns the result of the lookup, and the advice (None: no advice).

    query: a function that returns the advise request, given the result of the lookup. Given None,
    it returns a request that makes the daemon do the lookup before it advises. at_once: whether
    such a request is allowed. If the daemon does not answer, the call waits for one timeout only.
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
        return found, advice  # without advice the lookup was still done, by `match`
    return found, model.advise(replace(query(found), match=found))
