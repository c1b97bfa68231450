"""Writes docs/fidelity.md and its plot from what `measure.py` left.

python scripts/fidelity/report.py docs/results/fidelity.json docs/fidelity.md docs/fidelity.svg

What the other options of `measure.py` and `drift.py` left is read from fidelity-places.json and so on
beside the results, and fidelity-bytes.svg is written beside the plot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from plot import Panel, Point, Series, draw
from ways import FULL, PACKED, PREFIX, ROWS, SPLICED

ADDED, WHOLE = "naive addition", "whole tuples, edges again"
LINES = (FULL, SPLICED, WHOLE, ADDED)
Json = Mapping[str, object]

HEAD = """# Fidelity

What reuse at any position costs in answers. Segments are computed alone and spliced; that is exact for the
states of linear layers given their inputs, but the inputs of deeper layers were computed without what stands
before. How much that changes is a question to a trained model, so there is one: a small hybrid of the
Qwen3.5 shape ([scripts/tinyhybrid](../scripts/tinyhybrid/model/README.md)), asked about passages it never saw.
`make fidelity` measures this page.

{questions} held-out questions, {counts} passages a prompt, one question each, greedy answers, weights in
float32. Every way sees the same prompts. Measured {date} at {commit}, model {model}.

![Score by number of passages, and points lost by each way](fidelity.svg)

"""

WAYS = """
* **full**: the whole prompt is computed.
* **prefix**: the instruction comes from a checkpoint; exact, and here to show what rounding alone does.
* **spliced w=n**: every passage is reused; at each join the last n tokens of the left and the first
  n (at least 3, what the convolution looks back on) of the right are computed again, and the question.
* **T and S in fp16, bf16**: what transitions and end-states are kept in; they are composed in float32.
* **whole tuples, edges again**: the tuple of *all* tokens of a passage, with its edges computed again as
  well, so that these tokens enter the state twice. Only tests can make this.
* **naive addition**: end-states of whole passages are summed, as if every transition were the identity, and
  nothing is computed again but the question (the baseline of that name in HYPIC, section 6.1).
* **states added up, seams**: summed as well, but behind seams as of w=8: what they compute decays the sum, so
  it is not as wrong.

*Difference* is the score minus that of full over the same questions, in points, with a 95 % interval for
pairs (Agresti and Min). *Same token* is the share of prompts whose first answer token is the one of full.
*Surprise* is the mean -log p of the right first token in nats: it moves long before an answer does.
Rows of fewer questions asked a part of them: compare their differences, not their scores.
"""

PLACES = """
## Where the cuts lie

The same splice, w=8, with its cuts at other places. {questions} of the questions, measured {date} at {commit}.

"""

ABOUT_PLACES = """
* **spliced w=8**: between the notes, as above. It is also what the server's `chunks` finds where a blank line stands there.
* **at ends of sentences**: what `chunks` finds in this vocabulary, which has no line ends, with notes of some 90 tokens and
  chunks of 64 on average; whether a note ends there or not.
* **every 64 tokens**, **in the middle of notes**: most cuts lie inside of a sentence. No finder does that where a text has sentences.

What costs is to take notes apart, at the end of a sentence hardly less than inside of one. Where an application knows its passages,
separators, blank lines or cuts that keep them whole are worth more than any finder's choice within them.
"""

SEAMS = """
## What is computed again at a join

The same splice with other seams: w tokens on both sides of a join, on the right side alone (*beginnings*: a note's first eight, as
MEPIC has it) or on the left alone (*ends*: a note's last eight, and of the next one the three that the convolution looks back on).
{questions} of the questions, measured {date} at {commit}.

"""

ABOUT_SEAMS = """
What is computed anew at the beginning of a note helps; at its end it does not show: beginnings alone, eight tokens less at a join, lose
no more than both sides, and ends alone more. No difference between neighbouring rows is beyond the intervals. An engine sets it by
`tail_tokens=0` (transformers).
"""

DRIFT = """
## How far states and rows are off

Behind a splice at w=8, beside those of a full prefill: the norm of the difference over that of what it should be, mean over {prompts}
prompts for each number of notes, in %, measured {date} at {commit}. In brackets the same with what attention layers give left out of both: then only states carry
what stands before a note.

"""

ABOUT_DRIFT = """
The first layer's states are right to rounding, since what it reads does not depend on what stands before: that is what composition is
exact in. Behind it errors grow with depth, and slowly with the number of joins; without attention they do so too, to two thirds of it. By the distance of a reused token from the beginning of its note, in tokens:

"""

FORMS = """
## What tuples are kept in

The same splice, w=8, with its transitions T and end-states S in small forms. {questions} of the questions, measured
{date} at {commit}. Differences and same tokens are told from *spliced w=8*, T and S in float32, not from full; *bytes* are those of
tuples alone, of notes of some 90 tokens, beside T in fp16 and S in fp32.

![Score beside the splice of unrounded tuples, by the bytes that tuples take](fidelity-bytes.svg)

"""

ABOUT_FORMS = """
* **int***b*: a matrix is rows of *b*-bit numbers with a scale each; of T, what is left beside the mean of its diagonal. **fp8**: e4m3 with such
  scales: as many bytes as int8, and up to twice the error, since the numbers of a row are of one size.
* **packed**: what is stored at a [tolerance](engines.md#segments-in-fewer-bytes); 0.02 is the default. For each head the smallest of nothing
  (T), 8, 12 or 16 bits, for S two int8 factors of a rank up to a quarter of its side, and what was written, whose error is at most the tolerance: the spectral norm of T's, by its bound
  √‖E'E‖ (Frobenius), and the norm of S's beside that of S. Computed here by the same rules, in torch.
* **T of low rank too**: g times the identity and two int8 factors, by singular values. The daemon does not store that yet. T itself has full rank, and so has
  what is left beside the mean of its diagonal; beside its *median singular value*, the decay of directions that no token wrote, half of the heads that keep
  anything have a rank of a quarter of the side in the first model, where that would save a fifth of the bytes more; of three eighths in the second (at 0.02), where it saves next to nothing.
* **rows**: the layer's own keys, values, betas and decays of each token, from which T and S follow exactly. They take the fewest bytes for the
  shortest segments only: with 128x128 heads and two value heads for a key head 25 % at 64 tokens, 56 % at 140, and more than T and S from
  256 tokens on. Whoever uses them computes T and S again. Not stored.

Errors do not add up over a prompt's segments as bounds do, since later segments forget them with the rest. The state behind a
chain of segments, each stored so, beside the exact one: mean over heads, and the largest of any, in %. *Bound* is what follows from the norms of
T, T' - T and S' - S, mean, in %: it grows with each segment, so that no request is refused by it.

"""

WRONG = """
### Why 0.02 is the default, and when it would be wrong

A splice itself changes 4 first tokens of 100, and its deeper states are off by 4 to 25 % of their norm (above). Beside that 0.02 changes one or two first
tokens of 1,000, and no score beyond a tenth of a point, at a quarter of the bytes. It is wrong

* where the first answer with a segment and the later ones have to be the same to the bit: the request that captures a segment has it unrounded;
* where states are compared with, or handed to, something that expects the engine's own rounding (1e-3 in bf16): 0.02 is ten times that;
* where transitions keep everything over dozens of segments (decays of one, T's norm near one in all heads): errors of low-rank S stay then. The largest
  of the first model's heads comes to three times the tolerance behind 40 segments;
* where the daemon's processor has neither AVX2 nor AVX-512: packing takes some twelve times as long, and what takes too long is stored as written.

`tolerance: 0` (a setting of the engine) is right there; 0.005 takes 33 to 39 % of the bytes, with a seventh to a tenth of the error. Both models here are
small, with 24 and 12 heads: look at a canary's share of your own.
"""

KEYS = """
### Keys and values in 8 bits

The same splice with its segments' keys and values kept at a [row tolerance](engines.md#segments-in-fewer-bytes) of 0.02, which is off by default, alone and beside T and S at 0.02.
{questions} of the questions, measured {date} at {commit}. They take {bytes:.1f} % of 16 bits a number, and are off by {mean:.2f} % of their norm, {most:.2f} % at most. Differences and same tokens are told from *spliced w=8*.

"""

KEYS_WIDE = """
The same of the second model (below), {questions} questions: {bytes:.1f} % of 16 bits, {mean:.2f} %, {most:.2f} % at most.

"""

WIDE = """
### With heads of 128x128 and long notes

The same of a [second model](../scripts/tinyhybrid/long/README.md), whose heads were trained 128 wide and whose notes have 310 to 700 words. {questions} questions
of {notes} notes, measured {date} at {commit}, model {model}. Five of its twelve heads forget all that stands before a note.

"""


ABOUT_WIDE = """
**What costs answers is the splice**, not what tuples are kept in: beside a full prefill this model loses 5.6 points by it (2,100 questions, below; these 900 are among them), where the first one loses one. All of it are
questions about what goes from note to note (*latest* and *holder*); those that one or two notes answer stay at 100 %.

"""

WIDE_SEAMS = """
### What is computed again at a join, with long notes

The second model again, {questions} questions, measured {date} at {commit}.

"""

ABOUT_WIDE_SEAMS = """
Up to w=32, a tenth of a note, seams change nothing here; w=128, about half of a note computed again, wins back two of the five points. So the loss does not come from the joins, and no seam that is worth a splice repairs it; most of it is
repaired by [what notes are captured after](#what-a-note-is-captured-after). Beginnings alone are as good as both sides on this model too.
Before splicing long passages whose answers depend on one another, look at a canary's share of your own model.
"""

CAPTURES = """
## What a note is captured after

A note captured alone, from a zero state, is encoded as the first passage of a prompt. It can also be captured after a *primer*: one passage
for all notes, whose state and keys are computed once. Serving costs the same, and a capture a few percent more: its rows attend to the
primer's keys as well. Second model, w=8, {questions} questions of {notes} notes
that no other table has asked, measured {date} at {commit}. The first note after the instruction is captured alone unless a row says *first too*.

"""

CAPTURES_FIRST = """
The same of the first model, whose notes have some 90 tokens. {questions} questions of {notes} notes, measured {date} at {commit}.

"""

ABOUT_CAPTURES = """
* **distance**: the mean |difference of log p| from the full prefill over all tokens of the right answers. **removed**: the share of the
  distance of *spliced w=8* (notes captured alone) that is gone. Both have intervals by the bootstrap over questions. **divergence**: of the full prefill's
  distribution from this one, mean over the same tokens, in nats; it counts other answers as well.
* **same token** and **difference**: as above, beside the full prefill.
* **after its left neighbour**: each note after the one to its left in this prompt, and the first one after the instruction.
* **notes**: from other prompts of the generator, cut at a number of tokens; note A begins with the same 473 tokens. **shuffled notes**: the words
  of notes in any order. **random words**: any words of the vocabulary. **filler sentences**: the sentences of notes that state nothing.
* **hand-overs**: sentences on who has an item, which most questions are about. **notes without hand-overs**: notes as above that have none.

**What a primer says matters more than its length**, on the second model. 64 tokens of hand-overs remove three quarters of the distance, as much as
a whole note. Notes remove a quarter when they are cut before their first hand-over (128 tokens), and three quarters when they are cut after
the third (256 tokens). Notes without hand-overs, filler sentences and random words of 512 tokens remove two fifths, half and a fifth. So a neutral
text is not enough: a primer should be a passage of the kind that prompts are made of, and state things as they do.

**The first note after the instruction is better captured alone**: on both models more is removed in all five pairs than when it is
primed too.

The first model loses less, and a primer removes less of it: 1,024 tokens of notes remove half, as much as the true left neighbour. Its
intervals are too wide to rank primers by distance. But text unlike the prompts does harm there: after 512 random words or after
hand-overs alone the divergence is two to four times that of notes captured alone. On both models one or two whole notes are among the best.
Measure a primer on the model and the prompts it is for.
"""

ORACLES = """
### Which part carries it

The second model again, {questions} of these questions. A part of every note is taken from a capture after everything before it in this very prompt,
the rest from the note captured *alone* or *primed*, after 512 tokens of notes.

"""

ORACLES_FIRST = """
The first model, {questions} questions:

"""

ABOUT_ORACLES = """
* **last note in context**: computed in the prompt, nothing of it is reused; **asked**: the one with most of the question's attention after a
  splice of primed notes; **random**: any.
* **refresh**: as many notes in context as come nearest to that share of them, those with most of the question's attention. 0.15 is
  none of two or three notes, and one of four to six.
"""

OWN = """
## On your own prompts

How far splicing is from a full prefill depends on the model and on what its passages say of each other. One command measures it on
prompts and a model of yours, without a daemon and without labels, and recommends two [settings](engines.md#segments-captured-after-a-primer):
`primer`, a passage after which segments are captured, so that they are not encoded as the first one of a prompt, and `refresh`, the share of
their tokens that is computed in context all the same.

    python -m spliced_connector.fidelity MODEL_DIR PROMPTS.jsonl --primer default --primer /texts/passage.txt --refresh 0.01,0.15,0.3 --json figures.json

* **Prompts**, one JSON object a line: `{"ids": [...], "cuts": [...]}`, or `{"segments": ["instruction", "passage", ..., "question"]}`, which are
  tokenized as one text, or `{"messages": [...]}`. Where a prompt names no cuts, the finders of `--find` look for them, as in
  [a server](engines.md#segments-without-cuts). The first 100 prompts with segments are measured, or `--questions`.
* **Ways**: the full prefill; prefix reuse, which shows what rounding alone does; segments captured alone; segments captured after each
  `--primer`, but for those with fewer than 128 tokens before them (`--primer-after`). With `--refresh` also each of these with a share of
  the segments' tokens computed in context, from the last segment on and rounded up to whole ones; without shares 0.01, which is the last segment.
* **Figures**: the model answers greedily after the full prefill, and each way reads that answer, 16 tokens at most. Printed are the share of
  equal first tokens (Wilson's interval), the mean |Δ log p| of an answer token in nats, and the share of the distance of captures alone that
  a primer removes (bootstrap over prompts, paired).
* **Advice**: settings to paste beside `"mode": "splice"`, such as `{"primer": "/texts/passage.txt", "refresh": 0.01}`. A primer is in them if its
  distance is smaller than without one beyond the paired 95 % interval; a `refresh` if its distance is smaller than the smallest with less of it, likewise. The next
  line has what it costs: the share of prompt tokens computed, with and without. Below 90 % of equal first tokens there is a warning. Agreement is no score: another
  token can be as right. Of many ways the best looks better than it is, so measure it again on other prompts.
* **Not in it**: an engine's kernels, and segments packed by the daemon (0.02 changes one or two first tokens of 1,000, above).

The second model on 100 prompts of its generator, 2, 4 or 6 notes, and a note of another world as the primer. `default` is English text, of which this
vocabulary knows half of the words; it is untested on a model of natural text.

    python3 scripts/tinyhybrid/generate.py --cuts --shape long -k 2,4,6 --seed 1048576 > prompts.jsonl
    python3 scripts/tinyhybrid/generate.py --shape long -n 1 -k 2 --seed 9000000 |
      python3 -c 'import json, sys; print(json.load(sys.stdin)["text"][1])' > note.txt
    bin/engines/bin/python -m spliced_connector.fidelity scripts/tinyhybrid/long prompts.jsonl --dtype float32 --primer default --primer note.txt

| way | prompts | equal first tokens, % | equal answer tokens, % | mean abs. Δ log p | distance removed, % | tokens computed, % |
|---|---|---|---|---|---|---|
| full prefill | 100 | 100.0 (96.3 to 100.0) | 100.0 | 0.0000 (0.0000 to 0.0000) | | 100.0 |
| prefix reuse | 100 | 100.0 (96.3 to 100.0) | 100.0 | 0.0000 (0.0000 to 0.0000) | | 99.4 |
| spliced, no primer | 100 | 89.0 (81.4 to 93.7) | 95.6 | 0.1151 (0.0632 to 0.1807) | | 3.8 |
| spliced, primer default | 100 | 92.0 (85.0 to 95.9) | 96.8 | 0.0918 (0.0468 to 0.1553) | 20.2 (11.9 to 33.0) | 3.8 |
| spliced, primer /tmp/note.txt | 100 | 98.0 (93.0 to 99.4) | 99.2 | 0.0122 (0.0080 to 0.0170) | 89.4 (80.7 to 93.6) | 3.8 |

    Recommended settings: {"primer": "/tmp/note.txt"}

Measured 2026-11-29 at b2d8c8fa, in float32 on one thread of a Xeon that other work shared: 23 minutes. With `--refresh`, 30 of the prompts: 97.2 %
(92.5 to 98.7) is removed after the note and with the last segment in context, for 27 % of the tokens computed; 91.7 % (79.1 to 96.6) without a primer.
"""


def percent(e: Mapping[str, float]) -> str:
    return f"{100 * e['value']:.1f} ({100 * e['low']:.1f} to {100 * e['high']:.1f})"


def points(e: Mapping[str, float]) -> str:
    return f"{100 * e['value']:+.2f} ({100 * e['low']:+.2f} to {100 * e['high']:+.2f})"


def table(variants: Sequence[Json]) -> list[str]:
    lines = [
        "| way | questions | score, % | difference, points | same token, % | surprise |",
        "|---|---|---|---|---|---|",
    ]
    for v in variants:
        lines.append(
            f"| {v['name']} | {v['questions']:,} | {percent(v['score'])} | {points(v['difference'])} "  # type: ignore[arg-type]
            f"| {percent(v['agreement'])} | {v['surprise']:.3f} |"  # type: ignore[arg-type]
        )
    return lines


def split(variants: Sequence[Json], by: str, title: str) -> list[str]:
    """A table of scores with one column per group."""
    variants = [v for v in variants if v["questions"] == variants[0]["questions"]]
    groups = list(variants[0][f"by {by}"])  # type: ignore[call-overload]
    sizes = [variants[0][f"by {by}"][g]["questions"] for g in groups]  # type: ignore[index]
    head = " | ".join(f"{g} (n={n})" for g, n in zip(groups, sizes, strict=True))
    lines = [f"| {title} | {head} |", "|---" * (len(groups) + 1) + "|"]
    for v in variants:
        cells = [f"{100 * v[f'by {by}'][g]['score']['value']:.1f}" for g in groups]  # type: ignore[index]
        lines.append(f"| {v['name']} | {' | '.join(cells)} |")
    return lines


def places(result: Json) -> str:
    """The section on cuts at other places."""
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    head = PLACES.format(
        questions=variants[0]["questions"], date=result["date"], commit=result["commit"]
    )
    return head + "\n".join(table(variants)) + "\n" + ABOUT_PLACES


def seams(result: Json) -> str:
    """The section on what is computed again."""
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    head = SEAMS.format(
        questions=f"{variants[0]['questions']:,}", date=result["date"], commit=result["commit"]
    )
    return head + "\n".join(table(variants)) + "\n" + ABOUT_SEAMS


def drift(result: Json) -> str:
    """The section on how far states and rows are off."""
    head = DRIFT.format(**{k: result[k] for k in ("prompts", "date", "commit")})
    by_notes = errors(result, ", by notes", "notes in the prompt")
    by_distance = errors(result, ", by distance", "tokens from the beginning")
    return "\n".join(
        [head + by_notes[0], *by_notes[1:], ABOUT_DRIFT + by_distance[0], *by_distance[1:], ""]
    )


def errors(result: Json, suffix: str, title: str) -> list[str]:
    """Lines of a table, with the errors without attention in brackets."""
    whole: Mapping[str, Mapping[str, float]] = result["as it is"]  # type: ignore[assignment]
    silent: Mapping[str, Mapping[str, float]] = result["without attention"]  # type: ignore[assignment]
    names = [name for name in whole if name.endswith(suffix)]
    columns = list(whole[names[0]])
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        both = [(100 * whole[name][at], 100 * silent[name][at]) for at in columns]
        cells = " | ".join(f"{a:.1f} ({b:.1f})" for a, b in both)
        lines.append(f"| {name.removesuffix(suffix)} | {cells} |")
    return lines


def forms(result: Json) -> str:
    """The section on what tuples are kept in."""
    text = FORMS.format(**told(result)) + forms_table(result) + ABOUT_FORMS
    return text + chains_table(result) + WRONG


def keys(result: Json) -> str:
    """The section on keys and values in 8 bits."""
    return KEYS.format(**told(result), **about_keys(result)) + ways_table(result)


def keys_wide(result: Json) -> str:
    """The same of another model."""
    return KEYS_WIDE.format(**told(result), **about_keys(result)) + ways_table(result)


def about_keys(result: Json) -> dict[str, float]:
    """Bytes and errors of keys and values, in %."""
    found: Mapping[str, float] = result["keys"]  # type: ignore[assignment]
    return {name: 100 * found[name] for name in ("bytes", "mean", "most")}


def ways_table(result: Json) -> str:
    """A row for each way, beside the splice of what was not packed."""
    lines = [
        "| packed | difference, points | same token, % | surprise |",
        "|---|---|---|---|",
    ]
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    for v in variants:
        if v["name"] == FULL:
            continue
        beside: Mapping[str, Mapping[str, float]] = v["from spliced"]  # type: ignore[assignment]
        name = "nothing" if v["name"] == SPLICED else v["name"]
        lines.append(
            f"| {name} | {points(beside['difference'])} | {percent(beside['agreement'])} "
            f"| {v['surprise']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def wide(result: Json) -> str:
    """The same of another model."""
    text = WIDE.format(**told(result)) + forms_table(result)
    return text + ABOUT_WIDE + chains_table(result)


def wide_seams(result: Json) -> str:
    """The section on what is computed again in the other model."""
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    lines = table(variants) + ["", *split(variants, "kind", "kind")]
    return WIDE_SEAMS.format(**told(result)) + "\n".join(lines) + "\n" + ABOUT_WIDE_SEAMS


def captures(result: Json) -> str:
    """The section on what notes are captured after."""
    return CAPTURES.format(**told(result)) + distances_table(result)


def captures_first(result: Json) -> str:
    """The same of the first model, with what is to be said of both."""
    return CAPTURES_FIRST.format(**told(result)) + distances_table(result) + ABOUT_CAPTURES


def oracles(result: Json) -> str:
    """The section on the parts of captures."""
    return ORACLES.format(**told(result)) + distances_table(result)


def oracles_first(result: Json) -> str:
    """The same of the first model, with what is to be said of both."""
    return ORACLES_FIRST.format(**told(result)) + distances_table(result) + ABOUT_ORACLES


def distances_table(result: Json) -> str:
    """A row for each way of `contexts.py`."""
    lines = [
        "| way | distance | removed, % | divergence | same token, % | difference, points |",
        "|---|---|---|---|---|---|",
    ]
    ways: Sequence[Json] = result["ways"]  # type: ignore[assignment]
    for w in ways:
        if w["name"] == FULL:
            continue
        e: Mapping[str, Mapping[str, float]] = w  # type: ignore[assignment]
        off, gone = e["distance"], e["removed"]
        lines.append(
            f"| {w['name']} | {off['value']:.3f} ({off['low']:.3f} to {off['high']:.3f}) "
            f"| {100 * gone['value']:.0f} ({100 * gone['low']:.0f} to {100 * gone['high']:.0f}) "
            f"| {w['divergence']:.4f} | {percent(e['agreement'])} | {points(e['difference'])} |"
        )
    return "\n".join(lines) + "\n"


def chains_table(result: Json) -> str:
    """Errors of states by the number of segments behind which they are."""
    found: Mapping[str, Mapping[str, Mapping[str, float]]] = result["chains"]  # type: ignore[assignment]
    shown = {name: row for name, row in found.items() if row["1"]["mean"] > 1e-6}
    lengths = list(next(iter(shown.values())))
    lines = [f"| segments | {' | '.join(lengths)} | bound of {lengths[-1]} |"]
    lines.append("|---" * (len(lengths) + 2) + "|")
    for name, row in shown.items():
        cells = [f"{100 * row[n]['mean']:.2f} ({100 * row[n]['most']:.2f})" for n in lengths]
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * row[lengths[-1]]['bound']:.1f} |")
    return "\n".join(lines) + "\n"


def told(result: Json) -> dict[str, str]:
    """What the head of a section says."""
    variants: Sequence[Json] = result.get("variants") or result["ways"]  # type: ignore[assignment]
    counts = list(variants[0]["by notes"])  # type: ignore[call-overload]
    return {
        "questions": f"{variants[0]['questions']:,}",
        "notes": ", ".join(counts[:-1]) + f" or {counts[-1]}",
        "date": str(result["date"]),
        "commit": str(result["commit"]),
        "model": str(result["model"])[:12],
    }


def forms_table(result: Json) -> str:
    """A row for each form."""
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    weights: Mapping[str, float] = result["bytes"]  # type: ignore[assignment]
    lines = [
        "| way | questions | bytes, % | difference, points | same token, % | surprise |",
        "|---|---|---|---|---|---|",
    ]
    for v in variants:
        beside: Mapping[str, Mapping[str, float]] = v["from spliced"]  # type: ignore[assignment]
        name = str(v["name"])
        weight = f"{100 * weights[name]:.1f}" if name in weights else ""
        lines.append(
            f"| {name} | {v['questions']:,} | {weight} | {points(beside['difference'])} "
            f"| {percent(beside['agreement'])} | {v['surprise']:.3f} |"
        )
    lines.append(f"| {ROWS} | | {100 * weights[ROWS]:.1f} | exact | | |")
    return "\n".join(lines) + "\n"


def by_bytes(title: str, result: Json) -> Panel:
    """Differences from the splice of unrounded tuples by the bytes of forms."""
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    weights: Mapping[str, float] = result["bytes"]  # type: ignore[assignment]
    series = []
    for v in variants:
        name = str(v["name"])
        if name in weights and name != SPLICED:
            beside: Mapping[str, Mapping[str, float]] = v["from spliced"]  # type: ignore[assignment]
            at = [100 * beside["difference"][x] for x in ("value", "low", "high")]
            short = name.removeprefix(PACKED + ", ").removeprefix("packed, ")
            series.append(Series(short, [Point(100 * weights[name], *at)]))
    ticks = [float(x) for x in range(0, 101, 20)]
    return Panel(title, "bytes of T and S, % of fp16 and fp32", series, ticks=ticks)


def page(result: Json) -> str:
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    counts = list(variants[0]["by notes"])  # type: ignore[call-overload]
    head = HEAD.format(
        questions=f"{variants[0]['questions']:,}",
        counts=", ".join(counts[:-1]) + f" or {counts[-1]}",
        date=result["date"],
        commit=result["commit"],
        model=str(result["model"])[:12],
    )
    lines = table(variants)
    lines += ["", "By number of passages, score in %:", "", *split(variants, "notes", "passages")]
    lines += ["", "By kind of question, score in %:", "", *split(variants, "kind", "kind")]
    return head + "\n".join(lines) + "\n\n## The ways\n" + WAYS


def panels(result: Json) -> list[Panel]:
    variants: Sequence[Json] = result["variants"]  # type: ignore[assignment]
    named = {str(v["name"]): v for v in variants}
    by_count = [
        Series(
            name,
            [
                Point(float(k), *(100 * g["score"][x] for x in ("value", "low", "high")))
                for k, g in named[name]["by notes"].items()  # type: ignore[attr-defined]
            ],
        )
        for name in LINES
    ]
    shown = [v for v in variants if v["name"] not in (FULL, PREFIX, ADDED)]
    lost = [
        Point(float(i), *(100 * v["difference"][x] for x in ("value", "low", "high")))  # type: ignore[index]
        for i, v in enumerate(shown)
    ]
    return [
        Panel("score, %", "passages in the prompt", by_count),
        Panel(
            "difference from full, points", "", [Series("", lost)], [str(v["name"]) for v in shown]
        ),
    ]


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    source, text, plot = (Path(a) for a in sys.argv[1:])
    result = json.loads(source.read_text())
    more = ""
    sections = {
        "places": places,
        "seams": seams,
        "drift": drift,
        "forms": forms,
        "keys": keys,
        "keys-wide": keys_wide,
        "forms-wide": wide,
        "seams-wide": wide_seams,
        "captures-wide": captures,
        "captures": captures_first,
        "oracles-wide": oracles,
        "oracles": oracles_first,
    }
    found = {}
    for name, section in sections.items():
        beside = source.with_name(f"fidelity-{name}.json")
        if beside.exists():
            found[name] = json.loads(beside.read_text())
            more += section(found[name])
    text.write_text(page(result) + more + OWN)
    plot.write_text(draw(panels(result)))
    titles = {"forms": "heads of 64x64, points", "forms-wide": "heads of 128x128, points"}
    sizes = [by_bytes(titles[name], found[name]) for name in titles if name in found]
    plot.with_name("fidelity-bytes.svg").write_text(draw(sizes))


if __name__ == "__main__":
    main()
