"""Many requests to one SGLang, several at a time, while its daemon is in trouble.

    PYTHONPATH=src:tests ../../bin/sglang/bin/python -m engine.sglang_faults --requests 2000

The engine has little memory, so that requests give way to others, and checks its pools after every
batch: a slot that is lost ends it. The daemon is killed, stalled, restarted, filled by others and
emptied. What may not be: an error, a request without an answer, an exact answer that is not that of
the engine alone, a splice that begins otherwise than it did before the faults began.

In bfloat16 two tokens may be as good as each other, and which one is said depends on the batch. So
an answer that differs is given to the model, in transformers and without any cache: where each of
its tokens is `NEAR` the best one behind those in front of it, it is a tie, and counted as one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from client_samples import LARGE, new_segment
from engine.chaos import Chaos
from engine.sglang_harness import MODEL, Answer, Engine
from engine.test_sglang_splice import NEAR, QUESTIONS, Question, draw
from running import Daemon
from spliced_connector.client import Client, Options
from spliced_connector.hf import SplicedTransformers
from spliced_connector.model import weights_digest
from spliced_connector.walk import Naming

PROMPTS = 24
TOKENS = 12
AT_ONCE = 8
ABORTED = 0.06
"""Share of requests that are ended early."""
FILLED = 24
"""Segments of another model, some MiB each, that push the engine's out of a daemon's memory."""
SECONDS = 60.0
"""For what has to come to pass once the daemon is well."""


@dataclass
class Report:
    """What came of it."""

    requests: int = 0
    seconds: float = 0.0
    ways: Counter[str] = field(default_factory=Counter)
    exact: int = 0  # answers that were compared to their end
    spliced: int = 0  # answers of which the first token was
    aborted: int = 0
    retractions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ties: int = 0
    furthest: float = 0.0  # log-probability of an exact token, from that of the engine alone
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lived: bool = False
    recovered: bool = False  # splices again once all is over

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.errors) or not (self.lived and self.recovered)


@dataclass(frozen=True)
class Asked:
    """A request that is under way."""

    number: int
    prompt: int
    cuts: bool
    abort: bool


class Trouble(Chaos):
    """A daemon whose disk is emptied and whose memory others fill, too."""

    def __init__(self, daemon: Daemon, seed: int, counts: Counter[str]) -> None:
        # Between faults there is time to store and to find again.
        super().__init__(daemon, seed, counts, pause=(0.2, 5.0), stall=(0.01, 1.5), away=(0.0, 0.8))
        self._filled = 0
        self.ends["emptied"] = self._empty
        self.others["filled"] = self._fill

    def _empty(self) -> None:
        self.daemon.stop()
        shutil.rmtree(self.daemon.directory / "disk")

    def _fill(self) -> None:
        client = Client(Options(socket=self.daemon.socket, name="filler"))
        try:
            model = client.model(LARGE)
            model.wait_attached(5.0)
            for _ in range(FILLED):
                self._filled += 1
                model.publish([new_segment(model, 256, self._filled)])
        finally:
            client.close()


class Right:
    """What is right, by prompt: the engine's own answers before it had a daemon, and the first
    tokens of its splices before anything happened to that."""

    def __init__(self, engine: Engine, prompts: Sequence[Question]) -> None:
        self.prompts = prompts
        self.alone = [engine.ask(ids, tokens=TOKENS, logprobs=True) for ids, _ in prompts]
        crowd(engine)
        self.spliced: list[int] = []
        self._splices: list[torch.Tensor] = []  # log-probabilities behind the prompt

    @cached_property
    def model(self) -> torch.nn.Module:
        found: torch.nn.Module = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
        return found.eval()

    def splice(self, engine: Engine, daemon: Daemon) -> None:
        """Splices every prompt until all is held, and as the library does."""
        client = Client(Options(socket=daemon.socket, name="library", timeout=10.0))
        try:
            if not client.wait_attached(SECONDS):
                raise RuntimeError("no daemon")
            library = SplicedTransformers(self.model, client, Naming(weights_digest(MODEL)))
            for ids, cuts in self.prompts:
                answer = held(engine, daemon, ids, cuts)
                made = library.prefill(ids, cuts, mode="splice")
                if made.reused < answer.told["reused"]:
                    raise RuntimeError(f"{made.reused} reused, {made.trouble}: {answer.told}")
                self.spliced.append(answer.tokens[0])
                self._splices.append(torch.log_softmax(made.logits.float(), -1))
        finally:
            client.close()

    def near(self, prompt: int, tokens: Sequence[int]) -> bool:
        """Whether an exact answer is one that the model might give."""
        ids = self.prompts[prompt][0]
        with torch.no_grad():
            logits = self.model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
        said = torch.log_softmax(logits.float(), -1)
        gaps = said.max(-1).values - said[torch.arange(len(tokens)), torch.tensor(tokens)]
        return bool((gaps < NEAR).all())

    def near_spliced(self, prompt: int, token: int) -> bool:
        """The same of a splice's first token. One that began behind an exact prefix lies between
        the splice and the exact answer."""
        said = self._splices[prompt]
        return float(said.max() - said[token]) < NEAR or self.near(prompt, [token])


def crowd(engine: Engine, seed: int = 0) -> None:
    """Other prompts, until the engine's own tree has none of those that were asked before."""
    for number in [engine.begin(draw(1000 * seed + i, 700), tokens=1) for i in range(12)]:
        engine.take(number)


def held(engine: Engine, daemon: Daemon, ids: Sequence[int], cuts: Sequence[int]) -> Answer:
    """A splice of which all segments are held, and that begins behind no prefix: one that was
    stored behind an earlier answer, spliced or exact, is forgotten."""
    until = time.monotonic() + SECONDS
    for seed in count():
        answer = engine.ask(ids, cuts, TOKENS)
        if answer.whole(cuts) and not answer.prefix:
            return answer
        if time.monotonic() > until:
            break
        time.sleep(0.05)
        if answer.prefix:
            daemon.forget_checkpoints()
        if answer.told.get("way") != "splice":
            crowd(engine, seed + 1)
    raise RuntimeError(f"it is not spliced: {answer.told}")


def run(requests: int, seconds: float = 1e9, seed: int = 1) -> Report:
    """Asks until either bound is met."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="spliced-faults-") as name:
        directory = Path(name)
        daemon = Daemon(directory, "-prefill-speed=500", disk=True)
        settings: dict[str, object] = {
            "socket": daemon.socket,
            "mode": "splice",
            "measured": False,
            "canary_share": 0.0,
            "timeout_ms": 100.0,
            "load_ms": 500.0,
            "stall_ms": 20.0,
        }
        engine = Engine(
            directory / "engine",
            settings,
            environ={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "50"},
            max_total_tokens=4096,
            max_mamba_cache_size=14,
            chunked_prefill_size=256,
        )
        try:
            right = Right(engine, QUESTIONS[:PROMPTS])
            daemon.start()
            right.splice(engine, daemon)
            _ask_all(engine, daemon, right, report, (requests, seconds, seed))
            # Of segments that are new: of the others an exact prefix may be better.
            parts = [draw(7000 + i, 250) for i in range(3)]
            fresh = [*(token for part in parts for token in part), *draw(7003, 10)]
            again = engine.spliced(daemon, fresh, [0, 250, 500, 750])
            report.recovered = again.told.get("reused", 0) > 0
            time.sleep(1.0)  # idle: where it checks
            report.lived = not engine.ended
        except (RuntimeError, AssertionError) as err:
            report.errors.append(str(err))
        finally:
            report.errors += _said(engine)
            engine.close()
            daemon.stop()
    return report


def _ask_all(
    engine: Engine,
    daemon: Daemon,
    right: Right,
    report: Report,
    bounds: tuple[int, float, int],
) -> None:
    requests, seconds, seed = bounds
    pick = random.Random(seed)
    under_way: deque[Asked] = deque()
    chaos = Trouble(daemon, seed, report.faults)
    began = time.monotonic()
    with chaos.running():
        while report.requests < requests and time.monotonic() - began < seconds:
            under_way.append(_begin(engine, right, pick))
            report.requests += 1
            if under_way[-1].abort:
                time.sleep(pick.uniform(0.0, 0.3))
                engine.abort(under_way[-1].number)
            while len(under_way) >= pick.randint(1, AT_ONCE):
                _judge(engine.take(under_way[0].number), under_way.popleft(), right, report)
        while under_way:
            _judge(engine.take(under_way[0].number), under_way.popleft(), right, report)
    report.seconds = round(time.monotonic() - began, 1)
    if chaos.failed is not None:
        raise chaos.failed


def _begin(engine: Engine, right: Right, pick: random.Random) -> Asked:
    prompt = pick.randrange(len(right.prompts))
    # What was asked without cuts has an exact prefix soon, which is better than any splice.
    spliced = pick.random() < (0.95 if prompt % 2 else 0.2)
    ids, cuts = right.prompts[prompt]
    number = engine.begin(ids, cuts if spliced else None, TOKENS, logprobs=not spliced)
    return Asked(number, prompt, spliced, pick.random() < ABORTED)


def _judge(answer: Answer, asked: Asked, right: Right, report: Report) -> None:
    report.retractions += answer.retractions
    way = str(answer.told.get("way", "none"))
    name = f"prompt {asked.prompt}, {way}"
    if asked.abort and answer.finish not in ("stop", "length"):
        report.aborted += 1
    elif answer.finish not in ("stop", "length"):
        report.errors.append(f"{name}: {answer.finish}")
    else:
        report.ways[f"{'cuts' if asked.cuts else 'plain'}: {way}"] += 1
    if not asked.cuts and way == "splice":
        report.wrong.append(f"{name}: spliced, and it names no cuts")
    if not answer.tokens:
        if not asked.abort:
            report.wrong.append(f"{name}: no tokens")
    elif way == "splice" or (answer.retractions and asked.cuts):
        # Of one that gave way, a part may be of a splice and the rest be computed.
        _judge_splice(answer, asked, right, report, name)
    else:
        _judge_exact(answer, asked, right, report, name)


def _judge_splice(answer: Answer, asked: Asked, right: Right, report: Report, name: str) -> None:
    report.spliced += 1
    first, want = answer.tokens[0], right.spliced[asked.prompt]
    if first == want:
        return
    if right.near_spliced(asked.prompt, first):
        report.ties += 1
    else:
        report.wrong.append(f"{name}: begins with {first}, want {want}: {answer.told}")


def _judge_exact(answer: Answer, asked: Asked, right: Right, report: Report, name: str) -> None:
    report.exact += 1
    alone = right.alone[asked.prompt]
    want = alone.tokens[: len(answer.tokens)] if asked.abort else alone.tokens
    if answer.tokens != want:
        if right.near(asked.prompt, answer.tokens):
            report.ties += 1
        else:
            report.wrong.append(f"{name}: {answer.tokens}, want {want}: {answer.told}")
        return
    gaps = [abs(a - b) for a, b in zip(answer.logprobs, alone.logprobs, strict=False)]
    report.furthest = max([report.furthest, *(round(gap, 4) for gap in gaps)])
    if gaps and max(gaps) > NEAR:
        report.wrong.append(f"{name}: the right tokens, but {max(gaps):.3f} off: {answer.told}")


def _said(engine: Engine) -> list[str]:
    """What the engine has logged of ours that may not be."""
    log = engine.log.read_text(errors="replace")
    bad = ("spliced has failed", "spliced does nothing", "splicing a request failed")
    return [f"logged {log.count(text)} times: {text}" for text in bad if text in log]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=1e9, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    report = run(args.requests, args.seconds, args.seed)
    print(json.dumps(vars(report)), flush=True)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
