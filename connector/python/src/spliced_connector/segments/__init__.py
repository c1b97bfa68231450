"""Finds the segments of a prompt that names no cuts: separators, chat templates, chunks.

All decisions are made on the token ids of the whole prompt, so tokens that a tokenizer merges
across a boundary never matter for correctness: a cut lies between two tokens of the prompt as the
engine will compute it. Needs the standard library only; a tokenizer is passed in where one is
needed.
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
