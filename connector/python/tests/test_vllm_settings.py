"""What may be written into kv_connector_extra_config."""

from __future__ import annotations

import pytest

from spliced_connector.vllm.settings import Mode, Parallel, Settings

WEIGHTS = "ab" * 32


def test_only_the_weights_have_to_be_named() -> None:
    settings = Settings.read({"weights": WEIGHTS})
    assert settings == Settings(weights=WEIGHTS)
    assert settings.mode is Mode.PREFIX


def test_values_are_taken_as_they_are() -> None:
    given = {
        "weights": "/models/m",
        "mode": "splice",
        "socket": "/run/s.sock",
        "timeout_ms": 20,
        "seam_tokens": 16,
        "capture": False,
        "canary_share": 0.5,
        "tolerance": 0.02,
    }
    settings = Settings.read(given)
    assert settings.mode is Mode.SPLICE
    assert (settings.timeout_ms, settings.seam_tokens) == (20.0, 16)
    assert (settings.capture, settings.canary_share) == (False, 0.5)
    assert settings.tolerance == 0.02
    for primer in ("", "default", "/etc/primer.txt", [3, 4]):
        given["primer"] = primer
        assert Settings.read(given).primer == (primer if isinstance(primer, str) else (3, 4))
    assert Settings.read({"weights": WEIGHTS, "tolerance": 0.01}).tolerance == 0.01


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "weights: missing"),
        ({"weights": ""}, "weights: missing"),
        ({"weights": WEIGHTS, "sokcet": "/s"}, "sokcet: unknown"),
        ({"weights": WEIGHTS, "mode": "both"}, "mode: 'both'"),
        ({"weights": WEIGHTS, "timeout_ms": "50"}, "timeout_ms: '50'"),
        ({"weights": WEIGHTS, "timeout_ms": 0}, "timeout_ms: 0"),
        ({"weights": WEIGHTS, "timeout_ms": float("nan")}, "timeout_ms: nan"),
        ({"weights": WEIGHTS, "seam_tokens": True}, "seam_tokens: True"),
        ({"weights": WEIGHTS, "seam_tokens": 8.0}, "seam_tokens: 8.0"),
        ({"weights": WEIGHTS, "capture": 1}, "capture: 1"),
        ({"weights": WEIGHTS, "canary_share": 1.5}, "canary_share: 1.5"),
        ({"weights": WEIGHTS, "capture_tokens": 0}, "capture_tokens: 0"),
        ({"weights": WEIGHTS, "pending_mib": 0}, "pending_mib: 0"),
        (
            {"weights": WEIGHTS, "find": "chunks"},
            "find: 'chunks', want a list of known, separators",
        ),
        ({"weights": WEIGHTS, "find": ["chunk"]}, "find: ['chunk']"),
        ({"weights": WEIGHTS, "primer": "default"}, "primer: it is for mode splice"),
        ({"weights": WEIGHTS, "primer": "notes.txt"}, "primer: 'notes.txt', want \"default\""),
        ({"weights": WEIGHTS, "primer": [1, -1]}, "primer: [1, -1], want"),
        ({"weights": WEIGHTS, "primer_after": 0}, "primer_after: 0, want"),
        ({"weights": WEIGHTS, "find": ["separators"]}, "want each other"),
        ({"weights": WEIGHTS, "separators": ["<s>"]}, "want each other"),
        ({"weights": WEIGHTS, "find": ["separators"], "separators": [[]]}, "separators: [[]]"),
        ({"weights": WEIGHTS, "find": ["separators"], "separators": [[-1]]}, "separators: [[-1]]"),
        ({"weights": WEIGHTS, "find": ["separators"], "separators": []}, "separators: []"),
        ({"weights": WEIGHTS, "chunk_least": 8}, "chunk_least: 8"),
        ({"weights": WEIGHTS, "parallel": True}, "parallel: True, want off or work or combine"),
        ({"weights": WEIGHTS, "parallel": "both"}, "parallel: it is for mode splice"),
        (
            {"weights": WEIGHTS, "mode": "splice", "parallel": "work", "capture": False},
            "parallel: it needs capture",
        ),
        ({"weights": WEIGHTS, "parallel_share": 2}, "parallel_share: 2"),
        ({"weights": WEIGHTS, "shared_pages": True}, "shared_pages: it is for mode splice"),
        ({"weights": WEIGHTS, "mode": "splice", "shared_pages": 1}, "shared_pages: 1, want bool"),
        ({"weights": WEIGHTS, "mode": "splice", "tolerance": 0.1}, "0.1, want 0 to 0.05"),
        ({"weights": WEIGHTS, "mode": "splice", "tolerance": -1}, "tolerance: -1"),
        ({"weights": WEIGHTS, "mode": "splice", "tolerance": float("nan")}, "tolerance: nan"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match="kv_connector_extra_config") as caught:
        Settings.read(given)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("said", "works", "combines"),
    [("off", False, False), ("work", True, False), ("combine", False, True), ("both", True, True)],
)
def test_an_engine_works_for_others_or_has_others_work(
    said: str, works: bool, combines: bool
) -> None:
    settings = Settings.read({"weights": WEIGHTS, "mode": "splice", "parallel": said})
    assert (settings.parallel.works, settings.parallel.combines) == (works, combines)
    assert Settings(weights=WEIGHTS).parallel is Parallel.OFF


def test_finders_and_separators_are_lists() -> None:
    given = {"find": ["separators", "chunks"], "separators": ["<|sep|>", [5, 6]]}
    settings = Settings.read({"weights": WEIGHTS, **given})
    assert settings.find == ("separators", "chunks")
    assert settings.separators == ("<|sep|>", (5, 6))


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="kv_connector_extra_config") as caught:
        Settings.read({"mode": 7, "load_ms": -1, "nothing": 0})
    for name in ("mode", "load_ms", "nothing", "weights"):
        assert f"{name}: " in str(caught.value)
