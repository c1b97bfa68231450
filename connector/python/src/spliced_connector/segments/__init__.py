"""Finds the segments of a prompt whose request names no cuts: separators, chat templates, chunks.

Finders see only the token ids of the whole prompt, so a cut always lies between two tokens that the
engine will compute. A tokenizer that merges text across a boundary can therefore not make a cut
wrong. This package needs the standard library only; callers pass a tokenizer where one is needed.
"""

from spliced_connector.segments.breaks import breaks_of
from spliced_connector.segments.chat import cuts, located
from spliced_connector.segments.chunks import Chunker, Lengths
from spliced_connector.segments.finder import FINDERS, MOST_CUTS, Finder, Found
from spliced_connector.segments.labels import Labels
from spliced_connector.segments.separators import Separators
from spliced_connector.segments.template import Template, TemplateError
from spliced_connector.segments.tokenizer import Tokenizer

__all__ = [
    "FINDERS",
    "MOST_CUTS",
    "Chunker",
    "Finder",
    "Found",
    "Labels",
    "Lengths",
    "Separators",
    "Template",
    "TemplateError",
    "Tokenizer",
    "breaks_of",
    "cuts",
    "located",
]
