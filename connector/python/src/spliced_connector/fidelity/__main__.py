"""Measures how far splicing is from a full prefill, on your prompts and your model.

    python -m spliced_connector.fidelity MODEL_DIR PROMPTS.jsonl --json figures.json

Each prompt is computed in full, and the model's own greedy answer is read in each way of reuse:
after a prefix, spliced from segments captured alone, and from segments captured after each primer;
with --refresh also with the last segments computed in context. The line after the table has the
settings to use. Neither labels nor a daemon are needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from spliced_connector.errors import SplicedError
from spliced_connector.fidelity import report
from spliced_connector.fidelity.loading import Loaded, load, load_tokenizer
from spliced_connector.fidelity.measure import Meter
from spliced_connector.fidelity.progress import Progress
from spliced_connector.fidelity.prompts import Reader, Sample
from spliced_connector.fidelity.report import Settings
from spliced_connector.fidelity.ways import Measured, Skipped, Way, ways_of
from spliced_connector.model import LAST_SEGMENT
from spliced_connector.segments import FINDERS, Finder, Tokenizer
from spliced_connector.serving.finding import finder_of
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.primers import DEFAULT, primer_ids
from spliced_connector.serving.settings import ServingSettings
from spliced_connector.serving.weights import Loading, named_weights
from spliced_connector.walk import Primer, make_primer

_FOUND_BY = tuple(name for name in FINDERS if name != "known")
"""Finders that need no daemon."""

_DTYPES = ("auto", "float32", "bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0, or 2 with a line about the error."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (OSError, ValueError, SplicedError) as err:
        print(f"fidelity: {err}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spliced_connector.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL_DIR", help="directory of a model for transformers")
    add("prompts", type=Path, metavar="PROMPTS.jsonl", help="prompts, one JSON object a line")
    add("--questions", type=_count, default=100, help="prompts to measure, the first ones (100)")
    add("--answer-tokens", type=_count, default=16, help="tokens of an answer at most (16)")
    primer = '"default" or the path of a text file; may be repeated (default)'
    add("--primer", action="append", metavar="NAME", help=primer)
    after = "segments with fewer tokens before them have no primer (128)"
    add("--primer-after", type=_count, default=Settings.primer_after, help=after)
    seam = "tokens computed again on each side of a join (8)"
    add("--seam", type=_natural, default=Settings.seam, help=seam)
    refresh = "also with these shares of the segments' tokens computed in context, from the last"
    refresh += f" segment on, as 0.01,0.15 (without SHARES {LAST_SEGMENT:g}: the last segment)"
    last = (LAST_SEGMENT,)
    add(
        "--refresh", nargs="?", const=last, default=(), type=_shares, metavar="SHARES", help=refresh
    )
    find = "finders for prompts without cuts: separators, template, chunks (template,chunks)"
    add("--find", type=_finders, default=("template", "chunks"), metavar="NAMES", help=find)
    separator = "an added token that stands between segments; may be repeated"
    add("--separator", action="append", default=[], metavar="TOKEN", help=separator)
    add("--device", default="cpu", help="torch's name of the device (cpu)")
    dtype = "type of the weights; auto: that of the checkpoint (auto)"
    add("--dtype", default="auto", choices=_DTYPES, help=dtype)
    add("--json", type=Path, metavar="OUT", help="writes everything, prompt by prompt")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.json is not None and not options.json.parent.is_dir():
        raise ValueError(f"{options.json}: its directory does not exist")
    weights = _weights(options.model) if options.json is not None else b""
    model = load(options.model, options.dtype, options.device)
    tokenizer = cache(lambda: load_tokenizer(options.model))
    reader = Reader(model.vocabulary, tokenizer, cache(lambda: _finder(options, tokenizer())))
    primers = _primers(options, model, tokenizer)
    meter = Meter(model, options.seam, options.answer_tokens, primers, options.primer_after)
    samples, skipped = _usable(reader, meter, options)
    if not samples:
        raise ValueError(report.skips(skipped) or f"{options.prompts} has no prompts")
    ways = ways_of(list(primers), options.refresh)
    measured = _measured(meter, samples, ways)
    if not measured:
        return 130
    rows = report.figures(measured, ways)
    settings = Settings(options.seam, options.primer_after)
    print(report.table(rows))
    if left_out := report.skips(skipped):
        print(left_out)
    print(*report.advice(rows, settings), sep="\n")
    if options.json is not None:
        about = _about(options, weights, primers)
        written = report.document(about, rows, settings, measured, skipped)
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def _finder(options: argparse.Namespace, tokenizer: Tokenizer) -> Finder:
    """Returns the finders that a server would have. Raises ValueError."""
    separators = tuple(options.separator)
    settings = ServingSettings(weights="", find=options.find, separators=separators)
    try:
        return finder_of(settings, tokenizer)
    except ValueError as err:
        raise ValueError(f"{err} (--find names the finders, or give cuts)") from err


def _primers(
    options: argparse.Namespace, model: Loaded, tokenizer: Callable[[], Tokenizer]
) -> Mapping[str, Primer]:
    """Returns the primers by their names in settings. If the model cannot have a primer, no primer
    is measured, or ValueError is raised if --primer names one."""
    found: dict[str, Primer] = {}
    for given in options.primer or [DEFAULT]:
        name = given if given == DEFAULT else str(Path(given).absolute())
        try:
            ids = primer_ids(name, tokenizer(), model.arch.identity, model.vocabulary)
            found[name] = make_primer(model.arch, ids, model.device)
        except ValueError as err:
            if options.primer:
                raise
            print(f"fidelity: no primer is measured: {err}", file=sys.stderr)
    return found


def _usable(
    reader: Reader, meter: Meter, options: argparse.Namespace
) -> tuple[list[Sample], list[Skipped]]:
    """Returns the first prompts that can be measured, and the prompts skipped between them."""
    samples: list[Sample] = []
    skipped: list[Skipped] = []
    for sample in reader.read(options.prompts):
        if len(samples) == options.questions:
            break
        if why := meter.unusable(sample):
            skipped.append(Skipped(sample.line, why))
        else:
            samples.append(sample)
    return samples, skipped


def _measured(meter: Meter, samples: Sequence[Sample], ways: Sequence[Way]) -> list[Measured]:
    """Measures prompts; only some of them if the user interrupts."""
    found: list[Measured] = []
    progress = Progress([len(s.ids) for s in samples], sys.stderr, time.monotonic)
    try:
        for sample in samples:
            found.append(meter.measure(sample, ways))
            progress.done()
    except KeyboardInterrupt:
        print(f"interrupted after {len(found)} of {len(samples)} prompts", file=sys.stderr)
    return found


def _weights(directory: Path) -> bytes:
    """Returns the digest by which an engine that loads the directory checks the figures. Raises
    ValueError for a model without safetensors, whose data no engine shares."""
    named = str(directory)
    try:
        return named_weights(ServingSettings(weights=named), Loading(named))
    except Inert as err:
        raise ValueError(str(err)) from err


def _about(
    options: argparse.Namespace, weights: bytes, primers: Mapping[str, Primer]
) -> Mapping[str, object]:
    return {
        "model": str(options.model),
        "weights": weights.hex(),
        "prompts_file": str(options.prompts),
        "seam_tokens": options.seam,
        "answer_tokens": options.answer_tokens,
        "primer_after": options.primer_after,
        "dtype": options.dtype,
        "device": options.device,
        "primers": {
            name: {"tokens": p.tokens, "digest": p.digest.hex()} for name, p in primers.items()
        },
    }


def _finders(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    for name in names:
        if name not in _FOUND_BY:
            raise argparse.ArgumentTypeError(f"{name!r}, want some of {', '.join(_FOUND_BY)}")
    return names


def _shares(text: str) -> tuple[float, ...]:
    """Returns values of refresh, in ascending order. 1 is the full prefill, which is always
    measured."""
    try:
        shares = {float(share) for share in text.split(",")}
    except ValueError:
        shares = {0.0}
    if not all(0 < share < 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r}, want shares above 0 and below 1: 0.01,0.15")
    return tuple(sorted(shares))


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, want a number of tokens")
    return int(text)


def _count(text: str) -> int:
    if _natural(text) == 0:
        raise argparse.ArgumentTypeError("0, want 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
