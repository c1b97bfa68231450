"""Finds a request's segments: at the cuts that it names, else with the server's finders.

    {"spliced": {"v": 1, "find": ["template", "chunks"]}}

A request may have `find` instead of cuts, next to the other parameters that the module `cuts`
describes. `find` selects some of the finders that the server was started with; [] selects none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from spliced_connector.client import MAX_PROMPT, KnownQuery, Model
from spliced_connector.model import Lead
from spliced_connector.segments import (
    Chunker,
    Finder,
    Labels,
    Lengths,
    Separators,
    Template,
    Tokenizer,
    breaks_of,
)
from spliced_connector.serving.cuts import MAX_CUTS, Cuts, CutsError, read_cuts
from spliced_connector.serving.settings import ServingSettings
from spliced_connector.serving.tally import EngineTally


def finder_of(settings: ServingSettings, tokenizer: Tokenizer | None) -> Finder:
    """Returns the finders that settings name. Raises ValueError for a finder that does not fit the
    tokenizer.

    tokenizer: None if the engine has none. The finder "template" needs a tokenizer; "chunks" uses
    it only to find the ends of paragraphs.
    """
    separators = template = chunks = None
    try:
        if "separators" in settings.find:
            separators = Separators.of(settings.separators, tokenizer)
        if "template" in settings.find:
            if tokenizer is None:
                raise ValueError("template: the engine has no tokenizer")
            template = Template.of(tokenizer)
        if "chunks" in settings.find:
            lengths = Lengths(settings.chunk_least, settings.chunk_mean, settings.chunk_most)
            if tokenizer is None:
                chunks = Chunker(lengths)
            else:
                chunks = Chunker(lengths, breaks_of(tokenizer), Labels.of(tokenizer))
    except ValueError as err:
        raise ValueError(f"{settings.WHERE}: find: {err}") from err
    known = "known" in settings.find
    return Finder(separators, template, chunks, settings.chunk_least, MAX_CUTS, known)


def cuts_of(
    finder: Finder,
    params: Mapping[str, object] | None,
    ids: Sequence[int],
    w: int,
    held: Callable[[Sequence[int], int], Sequence[tuple[int, int]] | None] | None = None,
) -> Cuts | None:
    """Returns the cuts of a prompt; None if it has none and nothing went wrong.

    params: the request's parameters. w: seam width of requests that set none. held: a function that
    returns where cached segments lie, given token ids and a seam width; it returns None if the
    daemon does not answer. If the parameter held is None, no cached segments are looked up. Raises
    CutsError for invalid parameters.
    """
    options = params.get("spliced") if params else None
    if params is None or "spliced" not in params:
        use: Sequence[str] = finder.names
        rest = Cuts((), w)
    elif isinstance(options, Mapping) and "cuts" not in options:
        use, rest = _read_find(options, finder, w)
    else:
        return read_cuts(params, len(ids), w)
    known = held is not None and finder.known and "known" in use
    spans = held(ids, rest.w) if held is not None and known else ()
    trouble = "the daemon did not answer" if spans is None else ""
    found = finder.find(ids, use, spans or ())
    if not found.cuts and not trouble:
        return None
    return replace(rest, cuts=found.cuts, found=found, trouble=trouble)


def held_in(
    model: Model, tally: EngineTally, ids: Sequence[int], w: int, lead: Lead | None = None
) -> Sequence[tuple[int, int]] | None:
    """Returns the tokens [begin, end) of cached segments in a prompt, at a seam width of w tokens;
    None if the daemon does not answer.

    The segments end before the last token, which the engine must compute. The daemon is asked only
    about a prompt that is longer than a seam. lead: as `primer` in `model.divide`.
    """
    n = min(len(ids) - 1, MAX_PROMPT)
    if n <= w:
        return ()
    query = KnownQuery(ids[:n], 0, w)
    if lead is not None:
        query = replace(query, primer=lead.digest, primed_from=lead.begin)
    found = model.match(known=query)
    if found.trouble:
        tally.add("unanswered")
        return None
    tally.add("known_segments", len(found.known))
    return [(segment.start, segment.end) for segment in found.known]


def _read_find(options: Mapping[str, object], finder: Finder, w: int) -> tuple[Sequence[str], Cuts]:
    """Returns the finders that a request without cuts selects, and its other parameters."""
    use = options.get("find", finder.names if finder.names else None)
    # The other parameters are checked as in a request that names two cuts.
    others = {name: value for name, value in options.items() if name != "find"}
    rest = cast(Cuts, read_cuts({"spliced": {**others, "cuts": [0, 1]}}, 3, w))
    if use is None:
        raise CutsError("spliced.cuts: missing, and the server finds none by itself")
    if isinstance(use, str | bytes) or not isinstance(use, Sequence):
        raise CutsError(f"spliced.find: {type(use).__name__}, want a list of finders")
    for name in use:
        if name not in finder.names:
            have = ", ".join(finder.names) or "none"
            raise CutsError(f"spliced.find: {name!r}, this server has {have}")
    return use, rest
