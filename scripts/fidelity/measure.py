"""Answers held-out questions in every way and writes the results.

    python scripts/fidelity/measure.py --questions 2100 --workers 2 --out docs/results/fidelity.json
    python scripts/fidelity/measure.py --places --questions 400 --out docs/results/fidelity-places.json
    python scripts/fidelity/measure.py --forms --out docs/results/fidelity-forms.json
    python scripts/fidelity/measure.py --keys --out docs/results/fidelity-keys.json
    python scripts/fidelity/measure.py --seams --out docs/results/fidelity-seams.json
    python scripts/fidelity/measure.py --captures --out docs/results/fidelity-captures.json
    python scripts/fidelity/measure.py --settings --out docs/results/fidelity-settings.json
    python scripts/fidelity/measure.py --oracles --out docs/results/fidelity-oracles.json

While it runs, answers are in a file next to the result, one line per question, so that an
interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import platform
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import distances
from questions import FIRST_SEED, FRESH, TINYHYBRID, Question, generate, questions
from ways import (
    FORMS,
    FULL,
    KEYS,
    PLACES,
    ROWS,
    SPLICED,
    TOLERANCES,
    VARIANTS,
    WINDOWS,
    Variant,
    seams,
)

from spliced_connector.fidelity.intervals import paired, share

MODEL = TINYHYBRID / "model"
COUNTS = (2, 4, 6, 8, 12)
SEGMENTS = 200
Row = dict[str, object]
Ways = tuple[Variant, ...] | str
"""The compared ways: variants, or the name of a section of `contexts.py`."""


def load(directory: Path) -> object:
    """Returns a server of the model in a directory, in float32 on one thread."""
    import torch
    from serve import Server

    from spliced_connector.fidelity.loading import load as load_model

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return Server(load_model(directory, "float32").arch)


def digest(directory: Path) -> bytes:
    """Returns the SHA-256 of the weights file."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).digest()


_server: object = None
_ways: Ways = ()


def start(directory: Path, ways: Ways) -> None:
    """Loads the model once in a worker."""
    global _server, _ways
    _ways = ways
    _server = in_contexts(directory, ways) if isinstance(ways, str) else load(directory)


def in_contexts(directory: Path, section: str) -> object:
    """Returns a model that answers in the ways of a section of `contexts.py`."""
    from contexts import Contexts
    from serve import Server

    server = load(directory)
    if not isinstance(server, Server):
        raise RuntimeError("no server of a model")
    return Contexts(server, generate.shape_of(directory), section)


def answer(question: Question) -> Row:
    """Returns the answers to one question in all ways: whether each is right, its first token, and
    the surprise."""
    from contexts import Contexts
    from serve import Server

    if isinstance(_ways, str):
        if not isinstance(_server, Contexts):
            raise RuntimeError("the worker has no primers")
        return _server.row(question)
    if not isinstance(_server, Server):
        raise RuntimeError("the worker has no model")
    asked = tuple(v for v in _ways if question.seed // len(COUNTS) % v.every == 0)
    rows = {}
    for name, given in _server.answers(question, asked).items():
        rows[name] = [given.tokens == question.answer, given.tokens[0], given.surprise]
    return {
        "seed": question.seed,
        "kind": question.kind,
        "notes": question.notes,
        "tokens": len(question.ids),
        "answers": rows,
    }


def measure(todo: Sequence[Question], directory: Path, workers: int, ways: Ways) -> Iterator[Row]:
    """Yields rows in the order in which workers finish them."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, start, (directory, ways)) as pool:
        yield from pool.imap_unordered(answer, todo, chunksize=1 if isinstance(ways, str) else 4)


def summary(rows: Sequence[Row], ways: Sequence[Variant]) -> list[Row]:
    """Returns for each way its score, the difference from the full prefill's score, and the
    agreement of first tokens.

    "from spliced" has difference and agreement relative to the splice of unrounded tuples.
    """
    return [_summary(rows, v.name) for v in ways]


def _summary(rows: Sequence[Row], name: str) -> Row:
    rows = [row for row in rows if name in row["answers"]]  # type: ignore[operator]
    out: Row = {"name": name, "questions": len(rows)} | _score(rows, name)
    out["from spliced"] = _beside(rows, name, SPLICED)
    for by in ("notes", "kind"):
        groups: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            groups[str(row[by])].append(row)
        order = sorted(groups, key=lambda g: (len(g), g))
        out[f"by {by}"] = {
            g: {"questions": len(groups[g])} | _score(groups[g], name) for g in order
        }
    return out


def _score(rows: Sequence[Row], name: str) -> Row:
    surprise = [float(x) for x in _column(rows, name, 2)]  # type: ignore[arg-type]
    score: Row = {"score": asdict(share([bool(x) for x in _column(rows, name, 0)]))}
    return score | _beside(rows, name, FULL) | {"surprise": sum(surprise) / len(surprise)}


def _beside(rows: Sequence[Row], name: str, reference: str) -> Row:
    hits, others = ([bool(x) for x in _column(rows, which, 0)] for which in (name, reference))
    tokens = zip(_column(rows, name, 1), _column(rows, reference, 1), strict=True)
    return {
        "difference": asdict(paired(hits, others)),
        "agreement": asdict(share([a == b for a, b in tokens])),
    }


def _column(rows: Sequence[Row], name: str, at: int) -> list[object]:
    return [row["answers"][name][at] for row in rows]  # type: ignore[index]


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def describe(directory: Path) -> Row:
    """Returns date, commit, machine and model of the figures."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
        "machine": platform.processor() or platform.machine(),
        "model": digest(directory).hex(),
    }


def weigh(wanted: Sequence[Question], directory: Path, ways: Sequence[Variant]) -> Row:
    """Returns the bytes of T and S of some notes in each way (see `tuples.py`), and how errors add
    up along chains (see `chains.py`)."""
    from chains import chains
    from serve import Server
    from tuples import heads, rows_weight, some, weights

    server = load(directory)
    if not isinstance(server, Server):
        raise RuntimeError("no server of a model")
    segments = some(server, wanted, min(SEGMENTS, len(wanted)))
    rows = {ROWS: rows_weight(server.arch.identity, segments)}
    kept = [v for v in ways if v.seam is not None]
    return {"bytes": rows | weights(kept, *heads(segments)), "chains": chains(kept, segments)}


def weigh_keys(wanted: Sequence[Question], directory: Path) -> Row:
    """Returns the bytes that keys and values of some notes take in 8 bits, relative to 16 bits per
    number, and the largest and mean errors."""
    from forms import eight_bits
    from serve import Server
    from tuples import some

    server = load(directory)
    if not isinstance(server, Server):
        raise RuntimeError("no server of a model")
    errors, taken, plain = [], 0, 0
    for segment in some(server, wanted, min(SEGMENTS, len(wanted))):
        for x in (x for layer in segment.layers for x in (layer.k, layer.v) if x is not None):
            near = eight_bits(x, TOLERANCES[-1])
            errors.append(float((near.matrices - x).norm() / x.norm()))
            taken += int(near.sizes.sum())
            plain += 2 * x.numel()
    return {
        "keys": {"bytes": taken / plain, "most": max(errors), "mean": sum(errors) / len(errors)}
    }


def progress(rows: Iterable[Row], log: Path, total: int) -> Iterator[Row]:
    with log.open("a") as out:
        for i, row in enumerate(rows, 1):
            out.write(json.dumps(row) + "\n")
            out.flush()
            if i % 100 == 0:
                print(f"{i} of {total} questions", flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=2100)
    parser.add_argument("--workers", type=int, default=2)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--places", action="store_true", help="cuts at other places")
    which.add_argument("--forms", action="store_true", help="tuples in small forms")
    which.add_argument("--keys", action="store_true", help="keys and values in 8 bits")
    which.add_argument("--seams", action="store_true", help="other seams")
    which.add_argument("--captures", action="store_true", help="what notes are captured after")
    which.add_argument("--settings", action="store_true", help="primers and refresh")
    which.add_argument("--oracles", action="store_true", help="parts of captures made exact")
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)), help="seams' tokens")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--notes", default=",".join(map(str, COUNTS)), help="notes of a prompt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path, help="answers so far; default: beside --out, removed")
    options = parser.parse_args()
    log: Path = options.log or options.out.with_suffix(".answers.jsonl")
    windows = [int(w) for w in options.windows.split(",")]
    asked: dict[str, Ways] = {"places": PLACES, "forms": FORMS, "keys": KEYS}
    asked |= {"seams": seams(windows), "captures": "captures"}
    asked |= {"settings": "settings", "oracles": "oracles"}
    ways = next((asked[name] for name in asked if getattr(options, name)), VARIANTS)
    counts = tuple(int(n) for n in options.notes.split(","))
    first = FRESH if isinstance(ways, str) else FIRST_SEED
    wanted = list(questions(options.questions, counts, options.model, first))
    seeds = {q.seed for q in wanted}
    rows = [row for row in read(log) if row["seed"] in seeds]
    done = {row["seed"] for row in rows}
    todo = [q for q in wanted if q.seed not in done]
    if todo:
        answered = measure(todo, options.model, options.workers, ways)
        rows += progress(answered, log, len(todo))
    rows.sort(key=lambda row: int(str(row["seed"])))
    result = describe(options.model)
    if isinstance(ways, str):
        result |= {"ways": distances.summary(rows)}
    else:
        result |= {"variants": summary(rows, ways)}
    if options.forms:
        result |= weigh(wanted, options.model, ways)
    if options.keys:
        result |= weigh_keys(wanted, options.model)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.log is None:
        log.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
