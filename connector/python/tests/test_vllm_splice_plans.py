"""What a request may say about its segments, and how much of a prompt is taken over."""

from __future__ import annotations

import hashlib

import pytest

from spliced_connector.model import Choice, Profile, Prompt, SpanKind, divide, from_config
from spliced_connector.serving.cuts import Cuts, CutsError, read_cuts
from spliced_connector.serving.prices import CLAIM_ROWS, WALK_COST
from spliced_connector.serving.splices import advised_splice, best_splice

PROFILE = Profile(
    from_config(
        {
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "hidden_size": 64,
            "intermediate_size": 64,
            "vocab_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
        },
        hashlib.sha256(b"weights").digest(),
    )
)


def prompt(segments: int, tokens: int = 400, query: int = 30) -> Prompt:
    ids = [i % 64 for i in range(segments * tokens + query)]
    return divide(PROFILE, b"salt", ids, [i * tokens for i in range(segments + 1)], 8)


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({"v": 1, "cuts": [0, 4, 9]}, Cuts((0, 4, 9), 8)),
        ({"v": 1, "cuts": [3, 99], "w": 0}, Cuts((3, 99), 0)),
        ({"v": 1, "cuts": [3, 99], "max_error": 0}, Cuts((3, 99), 8, max_error=0.0)),
        ({"v": 1, "cuts": [3, 99], "max_error": 0.005}, Cuts((3, 99), 8, max_error=0.005)),
        ({"v": 1, "cuts": [3, 99], "refresh": 0.15}, Cuts((3, 99), 8, refresh=0.15)),
        ({"v": 1, "cuts": [3, 99], "max_loss": 0}, Cuts((3, 99), 8, max_loss=0.0)),
    ],
)
def test_cuts_are_read_as_they_are_said(said: object, want: Cuts) -> None:
    assert read_cuts({"spliced": said}, 100, 8) == want


def test_requests_that_name_no_cuts_are_not_ours() -> None:
    assert read_cuts(None, 100, 8) is None
    assert read_cuts({"do_remote_prefill": True}, 100, 8) is None


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([0, 4], "want an object"),
        ({"cuts": [0, 4]}, "spliced.v: None"),
        ({"v": 2, "cuts": [0, 4]}, "spliced.v: 2"),
        ({"v": 1}, "want a list"),
        ({"v": 1, "cuts": "04"}, "want a list"),
        ({"v": 1, "cuts": [4]}, "1 positions"),
        ({"v": 1, "cuts": list(range(2049))}, "2049 positions"),
        ({"v": 1, "cuts": [0, 100]}, r"cuts\[1\]: 100, want 0 to 99"),
        ({"v": 1, "cuts": [-1, 4]}, r"cuts\[0\]: -1"),
        ({"v": 1, "cuts": [0, 4, 4]}, "4 is followed by 4"),
        ({"v": 1, "cuts": [0, True]}, r"cuts\[1\]: True"),
        ({"v": 1, "cuts": [0, 1.5]}, r"cuts\[1\]: 1.5"),
        ({"v": 1, "cuts": [0, 4], "w": 5000}, "spliced.w: 5000"),
        ({"v": 1, "cuts": [0, 4], "W": 8}, "unknown W"),
        ({"v": 1, "cuts": [0, 4], "max_error": -0.1}, "spliced.max_error: -0.1, want 0 to 1"),
        ({"v": 1, "cuts": [0, 4], "max_error": float("nan")}, "spliced.max_error: nan"),
        ({"v": 1, "cuts": [0, 4], "refresh": 1.1}, "spliced.refresh: 1.1, want 0 to 1"),
        ({"v": 1, "cuts": [0, 4], "max_loss": -0.1}, "spliced.max_loss: -0.1, want 0 to 1"),
        ({"v": 1, "cuts": [0, 4], "max_loss": "low"}, "spliced.max_loss: 'low', want 0 to 1"),
        ({"v": 1, "cuts": [0, 4], "max_error": True}, "spliced.max_error: True"),
        ({"v": 1, "cuts": [0, 4], "max_error": "0"}, "spliced.max_error: '0'"),
    ],
)
def test_cuts_that_cannot_be_right_are_refused_by_name(said: object, text: str) -> None:
    with pytest.raises(CutsError, match=text):
        read_cuts({"spliced": said}, 100, 8)


def test_all_segments_in_place_are_taken_over() -> None:
    p = prompt(3)
    splice = best_splice(p, [Choice.HIT] * 3)
    assert splice is not None
    # A leading segment holds its own tail; the last one's is computed with the query.
    assert splice.tokens == 3 * 400 - 8
    assert splice.walked == 8 + 16
    at = 0
    for span in splice.spans:
        assert span.start == at
        at = span.end
    assert at == splice.tokens
    assert splice.spans[-1].kind is SpanKind.SEGMENT


def test_nothing_is_taken_over_where_nothing_is_there() -> None:
    assert best_splice(prompt(3), [Choice.CONTEXT] * 3) is None


def test_a_run_of_missing_segments_ends_the_takeover() -> None:
    hit, miss = Choice.HIT, Choice.CONTEXT
    splice = best_splice(prompt(4), [hit, miss, miss, hit])
    assert splice is not None
    assert splice.tokens == 400
    assert splice.choices == (hit, miss, miss, miss)


def test_a_missing_segment_is_walked_when_enough_stands_behind_it() -> None:
    hit, miss = Choice.HIT, Choice.CONTEXT
    splice = best_splice(prompt(6), [hit, miss, hit, hit, hit, hit])
    assert splice is not None
    assert splice.tokens == 6 * 400 - 8
    assert splice.walked >= 400


def test_a_takeover_that_saves_less_than_a_step_is_left_alone() -> None:
    tokens = CLAIM_ROWS // 2
    assert best_splice(prompt(1, tokens), [Choice.HIT]) is None


def test_no_other_end_of_the_takeover_is_cheaper() -> None:
    """Against the plainest search: every end, costs added up anew."""
    for bits in range(2**6):
        choices = [Choice.HIT if bits >> i & 1 else Choice.CONTEXT for i in range(6)]
        p = prompt(6, tokens=90)
        costs = {0: float(p.tokens)}
        for n in range(1, 7):
            cut = choices[:n] + [Choice.CONTEXT] * (6 - n)
            if cut[n - 1] is not Choice.HIT:
                continue
            end = n * 90 - (8 if n > 1 else 0)
            kept = sum(90 - (0 if i == 0 else 16) for i in range(n) if cut[i] is Choice.HIT)
            costs[end] = CLAIM_ROWS + WALK_COST * (end - kept) + p.tokens - end
        splice = best_splice(p, choices)
        end = 0 if splice is None else splice.tokens
        assert costs[end] == min(costs.values()), choices


def test_what_the_daemon_advises_is_taken_over() -> None:
    hit, miss = Choice.HIT, Choice.CONTEXT
    p, choices = prompt(4), [hit, miss, miss, hit]
    for end, tokens in ((0, None), (399, None), (400, 400), (1199, 400), (1600, 1600 - 8)):
        splice = advised_splice(p, choices, 0, end)
        assert (None if splice is None else splice.tokens) == tokens, end
    whole = advised_splice(p, choices, 0, 1600)
    assert whole is not None
    assert whole.choices == tuple(choices)
    assert whole.walked >= 800, "by the guess it would end before"


def test_what_was_to_be_there_and_is_lost_is_captured() -> None:
    hit, miss = Choice.HIT, Choice.CONTEXT
    splice = best_splice(prompt(4), [hit, hit, miss, hit])
    assert splice is not None
    second = splice.prompt.pieces[1].key
    assert second is not None
    assert splice.lost(frozenset()) is splice
    lost = splice.lost(frozenset({second, splice.prompt.pieces[2].key or b""}))
    assert lost.choices == (hit, Choice.ISOLATED, *splice.choices[2:])
    assert (lost.spans, lost.tokens) == (splice.spans, splice.tokens)
    assert lost.reused < splice.reused
    assert lost.keys(Choice.ISOLATED) == {second}
