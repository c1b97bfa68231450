"""What a server finds in prompts, as its settings and a request say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spliced_connector.segments import Finder, Separators
from spliced_connector.serving.cuts import Cuts, CutsError
from spliced_connector.serving.finding import cuts_of, finder_of
from spliced_connector.vllm.settings import Settings
from toy_tokenizers import WordTokenizer, chatml, plain

FINDER = Finder(Separators([[0]]))
IDS = [0, 5, 6, 7, 0, 8, 9]


def settings(*find: str, **more: object) -> Settings:
    return Settings.read({"weights": "0" * 64, "find": list(find), **more})


def test_settings_name_the_finders() -> None:
    finder = finder_of(
        settings("separators", "template", "chunks", separators=["<|sep|>"], chunk_mean=128),
        chatml(),
    )
    assert finder.names == ("separators", "template", "chunks")
    assert finder.chunks is not None
    assert finder.chunks.lengths.mean == 128
    assert finder_of(settings("chunks"), None).names == ("chunks",), "these need no tokenizer"
    assert finder_of(settings("known", mode="splice"), None).names == ("known",)
    with pytest.raises(ValueError, match="'known' is for mode splice"):
        settings("known")


@pytest.mark.parametrize(
    ("given", "tokenizer", "text"),
    [
        (settings("template"), None, "template: the engine has no tokenizer"),
        (settings("template"), plain(), "no added tokens between messages"),
        (settings("separators", separators=["# #"]), chatml(), "'# #': no token of its own"),
        (settings("chunks", chunk_least=512), None, "chunks of 512 to 1024 tokens, 256 on"),
    ],
)
def test_finders_that_cannot_work_end_the_start(
    given: Settings, tokenizer: WordTokenizer | None, text: str
) -> None:
    with pytest.raises(ValueError, match=f"kv_connector_extra_config: find: .*{text}"):
        finder_of(given, tokenizer)


def test_a_request_says_nothing_cuts_or_finders() -> None:
    everything = cuts_of(FINDER, None, IDS, 8)
    assert everything is not None
    assert (everything.cuts, everything.w) == ((0, 1, 4, 5), 8)
    assert cuts_of(FINDER, {}, IDS, 8) == everything
    assert cuts_of(FINDER, {"spliced": {"v": 1}}, IDS, 8) == everything
    assert cuts_of(FINDER, {"spliced": {"v": 1, "find": ["separators"]}}, IDS, 8) == everything
    wide = cuts_of(FINDER, {"spliced": {"v": 1, "w": 16}}, IDS, 8)
    assert wide is not None
    assert wide.w == 16
    near = cuts_of(FINDER, {"spliced": {"v": 1, "max_error": 0.01}}, IDS, 8)
    assert near == replace(everything, max_error=0.01)
    fresh = cuts_of(FINDER, {"spliced": {"v": 1, "refresh": 0.2}}, IDS, 8)
    assert fresh == replace(everything, refresh=0.2)
    limited = cuts_of(FINDER, {"spliced": {"v": 1, "max_loss": 0.05}}, IDS, 8)
    assert limited == replace(everything, max_loss=0.05)
    assert cuts_of(FINDER, {"spliced": {"v": 1, "find": []}}, IDS, 8) is None
    assert cuts_of(FINDER, {"spliced": {"v": 1, "cuts": [0, 3]}}, IDS, 8) == Cuts((0, 3), 8)
    assert cuts_of(FINDER, None, [5, 6, 7], 8) is None
    assert cuts_of(Finder(), None, IDS, 8) is None


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"v": 1, "find": ["chunks"]}, "'chunks', this server has separators"),
        ({"v": 1, "find": "separators"}, "find: str, want a list"),
        ({"v": 1, "find": [], "cuts": [0, 3]}, "unknown find"),
        ({"v": 2, "find": []}, "spliced.v: 2"),
        ({"find": []}, "spliced.v: None"),
        ({"v": 1, "find": [], "w": -1}, "spliced.w: -1"),
        ({"v": 1, "found": []}, "unknown found"),
        ([], "spliced: list"),
        (None, "spliced: NoneType"),
    ],
)
def test_what_a_request_says_wrong_is_named(said: object, text: str) -> None:
    with pytest.raises(CutsError, match=text):
        cuts_of(FINDER, {"spliced": said}, IDS, 8)


def test_a_server_without_finders_wants_cuts() -> None:
    with pytest.raises(CutsError, match="cuts: missing, and the server finds none"):
        cuts_of(Finder(), {"spliced": {"v": 1}}, IDS, 8)
    with pytest.raises(CutsError, match="'chunks', this server has none"):
        cuts_of(Finder(), {"spliced": {"v": 1, "find": ["chunks"]}}, IDS, 8)
