"""Two engines of transformers at one daemon with memory of the GPU: what reuse gives them.

Each engine is a process. The first computes a prompt, publishes its segments and saves its prefix;
the second reuses them, from copies on the GPU and from host memory, at other positions too. Its
logits are compared with those of the first, and its times to the first token with computing all.
The model is the one that came along, whose answers can be right or wrong, or a larger one of random
numbers with heads of the usual size.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spliced_connector.hf import SplicedTransformers

REUSE_SHARE = 0.5
"""Of the time of a spliced request from host memory: what one from the GPU may take."""

EXACT, ROUNDED = 0.1, 0.25
"""Difference of logits, relative to their spread, that is let pass: where the same numbers are
added in another order, and where the model's own forward computes them, as the canary has it.
Guesses for bfloat16; in float32 both are near 1e-6. Wrong rows or states give 1 and more."""

MOVES = 4096
"""Tokens of a prompt from which on the bytes of its segments take the time, not the launches."""

PATIENCE = 20.0
"""Seconds for what takes less than one: memory attached, copies made."""


@dataclass(frozen=True)
class Sizes:
    """Of the model of random numbers, and of what it is asked."""

    hidden: int
    layers: int
    heads: int
    dim: int
    vocabulary: int
    segments: int
    tokens: int
    rounds: int


FULL = Sizes(2048, 16, 32, 128, 8192, 8, 1024, 7)
SMALL = Sizes(64, 4, 4, 16, 256, 3, 48, 2)


# An engine's process: a command a line, an answer a line.


def build(name: str, sizes: Sizes, device: str) -> PreTrainedModel:
    """The model; the same numbers in every process."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(1)
    if name != "random":
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        return AutoModelForCausalLM.from_pretrained(name, dtype=kind).to(device).eval()
    z = sizes
    config = Qwen3_5TextConfig(
        vocab_size=z.vocabulary,
        hidden_size=z.hidden,
        intermediate_size=3 * z.hidden,
        num_hidden_layers=z.layers,
        num_attention_heads=z.heads // 2,
        num_key_value_heads=2,
        head_dim=2 * z.dim,
        linear_num_key_heads=z.heads // 2,
        linear_num_value_heads=z.heads,
        linear_key_head_dim=z.dim,
        linear_value_head_dim=z.dim,
        max_position_embeddings=1 << 20,
        eos_token_id=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [z.dim // 8, z.dim // 16, z.dim // 16],
        },
    )
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):  # numbers are drawn where they stay: seconds less
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


class Engine:
    """A model with two adapters: one that may use the GPU's memory, and one that has no choice."""

    def __init__(self, args: argparse.Namespace, sizes: Sizes, device: str) -> None:
        import torch

        from spliced_connector.client import Client, DeviceOptions, Options
        from spliced_connector.hf import HFSettings, SplicedTransformers
        from spliced_connector.walk import Naming

        if device == "cpu":
            torch.set_num_threads(1)
        self._torch, self._device = torch, device
        uuid = bytes.fromhex(args.device.removeprefix("GPU-").replace("-", ""))
        gpu = DeviceOptions(uuid=uuid, attach_timeout=PATIENCE)
        if args.library:
            gpu = dataclasses.replace(gpu, library=args.library)
        patient = Options(
            socket=args.socket, name="gpu-check", timeout=5.0, attach_timeout=10.0,
            transfer_timeout=30.0,
        )  # fmt: skip
        model = build(args.model, sizes, device)
        naming = Naming(b"gpu-check".ljust(32, b"\0"))
        settings = HFSettings(keep_all=True, device_is_host_memory=device == "cpu")
        self._clients = [
            Client(dataclasses.replace(patient, device=gpu)),
            Client(patient),
        ]
        self._engines = [SplicedTransformers(model, c, naming, settings) for c in self._clients]

    def state(self) -> dict[str, object]:
        """Why memory of the GPU is not used; empty when it is."""
        self._clients[0].wait_device(PATIENCE)
        return {"inert": self._engines[0].inert, "device": self._engines[0].device_state}

    def prefill(
        self, ids: list[int], cuts: list[int], mode: Any, gpu: bool, keep: bool, rounds: int
    ) -> dict[str, object]:
        """Median seconds to the first token, and what the last round gave."""
        engine: SplicedTransformers = self._engines[0 if gpu else 1]
        took = []
        for _ in range(rounds):
            self._wait()
            start = time.perf_counter()
            done = engine.prefill(ids, cuts, mode, keep=False)
            first = int(done.logits.argmax())  # waits for the device
            took.append(time.perf_counter() - start)
        if keep:
            engine.store(done)
        return {
            "seconds": statistics.median(took),
            "logits": done.logits.float().tolist(),
            "first": first,
            "reused": done.reused,
            "on_device": done.on_device,
            "trouble": done.trouble,
        }

    def generate(
        self, ids: list[int], cuts: list[int], mode: Any, gpu: bool, n: int
    ) -> dict[str, object]:
        """Greedy tokens."""
        engine = self._engines[0 if gpu else 1]
        out = engine.generate(ids, cuts, mode, max_new_tokens=n, do_sample=False)
        return {"tokens": out[0, len(ids) :].tolist()}

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def serve(args: argparse.Namespace, sizes: Sizes, device: str) -> int:
    """Answer commands until standard input ends: the parent is done, or gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    engine = Engine(args, sizes, device)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(engine, asked.pop("do"))(**asked)
        except Exception as err:
            *_, at = traceback.extract_tb(err.__traceback__)
            where = f"{Path(at.filename).name}:{at.lineno}"
            answer = {"error": f"{type(err).__name__}: {err} ({where})"}
        print(json.dumps(answer), file=answers, flush=True)
    engine.close()
    return 0


class Process:
    """An engine in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--child", *sys.argv[1:]]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **asked: object) -> dict[str, Any]:
        """Its answer. Raises RuntimeError for trouble there."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("no pipes to an engine")
        try:
            print(json.dumps({"do": do, **asked}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"an engine ended with {self._process.wait(PATIENCE)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def check(name: str) -> Iterator[None]:
    """A row for trouble, after which the others go on."""
    try:
        yield
    except (RuntimeError, AssertionError) as err:
        rows.holds(name, str(err) or type(err).__name__)


def tried(name: str, engine: Process, **asked: object) -> dict[str, Any] | None:
    """An answer to prefill, or a row for the trouble and None."""
    with check(name):
        return engine.ask("prefill", **asked)
    return None


def off(a: list[float], b: list[float]) -> float:
    """The largest difference, relative to the spread of b."""
    spread = statistics.pstdev(b) or 1.0
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / spread


@dataclass(frozen=True)
class Prompt:
    """Segments, and a question behind them."""

    segments: list[list[int]]
    query: list[int]

    @property
    def ids(self) -> list[int]:
        return [*itertools.chain.from_iterable(self.segments), *self.query]

    @property
    def cuts(self) -> list[int]:
        at = [0]
        for segment in self.segments:
            at.append(at[-1] + len(segment))
        return at

    def elsewhere(self) -> Prompt:
        """All segments but the first one in another order, behind another first one."""
        return Prompt([self.segments[0][::-1], *self.segments[:0:-1]], self.query)


def drawn(sizes: Sizes, seed: int) -> Prompt:
    draw = random.Random(seed)

    def some(n: int) -> list[int]:
        return [draw.randrange(2, sizes.vocabulary) for _ in range(n)]

    return Prompt([some(sizes.tokens) for _ in range(sizes.segments)], some(32))


def questions(directory: Path, n: int) -> list[tuple[Prompt, list[int]]]:
    """The model's own questions, and the answers that transformers gave where it was made."""
    out = []
    with (directory / "questions.jsonl").open() as lines:
        for line in lines:
            asked = json.loads(line)
            *segments, query = asked["segments"]
            out.append((Prompt(segments, query), asked["answer"]))
            if len(out) == n:
                break
    return out


def run(args: argparse.Namespace, sizes: Sizes) -> None:
    """Print the rows."""
    name = "the model that came along" if args.model != "random" else "a model of random numbers"
    if args.model != "random":
        shipped = questions(Path(args.model), 2 if sizes is SMALL else 12)
        prompt = shipped[0][0]
    else:
        shipped, prompt = [], drawn(sizes, 1)
    writer, reader = Process(args), Process(args)
    lacks = ""
    try:
        for which, engine in (("first", writer), ("second", reader)):
            said = engine.ask("state")
            title = f"{name}: the {which} engine has memory of the GPU"
            rows.holds(title, said["inert"] or said["device"])
            lacks = lacks or said["inert"] or said["device"]
        if lacks:
            return  # what follows would be of host memory alone
        compare(name, prompt, writer, reader, sizes)
        if shipped:
            with check(f"{name}: answers"):
                answers(name, shipped, writer, reader)
    finally:
        writer.close()
        reader.close()


def compare(name: str, p: Prompt, writer: Process, reader: Process, sizes: Sizes) -> None:
    """Prefixes and splices of one prompt."""
    once = {"ids": p.ids, "cuts": p.cuts, "keep": False, "rounds": sizes.rounds}
    plain = reader.ask("prefill", mode="none", gpu=False, **once)
    size = f"{len(p.ids)} tokens in {len(p.segments)} segments"
    rows.figure(f"{name}: first token, no cache, {size}", plain["seconds"] * 1e3, "ms")
    # The prefix last: what is spliced would continue it.
    for mode, bound in (("splice", EXACT), ("prefix", ROUNDED)):
        title = f"{name}: {mode}"
        with check(title):
            # Segments are published in another order, and the first one, which has its own form
            # and is continued as a prefix, alone: no whole prompt is known.
            known = (p.elsewhere(), Prompt(p.segments[:1], p.query)) if mode == "splice" else (p,)
            for one in known:
                writer.ask(
                    "prefill", ids=one.ids, cuts=one.cuts, mode=mode, gpu=False, keep=True, rounds=1
                )
            asked = {"ids": p.ids, "cuts": p.cuts, "mode": mode}
            want: dict[str, Any] | None = plain
            if mode == "splice":
                once = {"gpu": False, **asked, "keep": False, "rounds": 1}
                want = tried(f"{title} in the first engine", writer, **once)
            # Segments of the small model are nothing to copy: it tells right from wrong only.
            bar = REUSE_SHARE if mode == "splice" and len(p.ids) > MOVES else 0.0
            reused(title, want, asked, reader, bound, sizes, plain["seconds"], bar)


def reused(
    title: str, want: dict[str, Any] | None, asked: dict[str, Any], reader: Process, bound: float,
    sizes: Sizes, plain: float, bar: float,
) -> None:  # fmt: skip
    """One mode in the second engine, from both kinds of memory. bar: the part of the time from
    host memory that may be taken from the GPU, 0 for any."""
    repeated = {**asked, "keep": False, "rounds": sizes.rounds}
    host = tried(f"{title}: from memory", reader, gpu=False, **repeated)
    until = time.monotonic() + PATIENCE
    while True:  # the copies are made when they are first asked for
        gpu = reader.ask("prefill", gpu=True, **asked, keep=False, rounds=1)
        if gpu["on_device"] == gpu["reused"] > 0 or time.monotonic() > until:
            break
    whole = gpu["on_device"] == gpu["reused"] > 0
    total = len(asked["ids"])
    rows.figure(f"{title}: tokens of {total} that are reused", gpu["reused"], "tokens")
    said = f"{gpu['on_device']} of {gpu['reused']} reused tokens: {gpu['trouble']}"
    rows.holds(f"{title}: all that is reused comes from the GPU", "" if whole else said)
    gpu = reader.ask("prefill", gpu=True, **repeated)
    for what, got in (("memory", host), ("the GPU", gpu)):
        if got is None:
            continue
        if want is not None:
            difference = off(got["logits"], want["logits"])
            rows.at_most(f"{title}: logits from {what}", difference, "of spread", bound)
        named = f"{title}: first token, from {what}, beside no cache"
        rows.within(named, got["seconds"] * 1e3, plain * 1e3, "ms")
    if host is not None:
        named = f"{title}: first token, from the GPU, beside from memory"
        rows.within(named, gpu["seconds"] * 1e3, host["seconds"] * 1e3, "ms", bar)


def answers(
    name: str, shipped: list[tuple[Prompt, list[int]]], writer: Process, reader: Process
) -> None:
    """Questions answered from segments of the first engine, beside those answered without."""
    right = {"none": 0, "splice": 0}
    same = 0
    for prompt, answer in shipped:
        asked = {"ids": prompt.ids, "cuts": prompt.cuts, "n": len(answer)}
        ready = {"ids": prompt.ids, "cuts": prompt.cuts, "mode": "splice", "rounds": 1}
        writer.ask("prefill", gpu=False, keep=True, **ready)
        reader.ask("prefill", gpu=True, keep=False, **ready)
        said = [
            reader.ask("generate", mode=mode, gpu=gpu, **asked)["tokens"]
            for mode, gpu in (("none", False), ("splice", False), ("splice", True))
        ]
        right["none"] += said[0] == answer
        right["splice"] += said[2] == answer
        same += said[1] == said[2]
    n = len(shipped)
    rows.figure(f"{name}: right answers of {n}, no cache", right["none"], "answers")
    rows.figure(f"{name}: right answers of {n}, spliced from the GPU", right["splice"], "answers")
    trouble = "" if same == n else f"{same} of {n}"
    rows.holds(f"{name}: answers from the GPU are those from memory", trouble)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--library", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--model", required=True, help="a directory, or random")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    device = os.environ.get("GPU_CHECK_TORCH", "cuda")
    try:
        import torch
        from transformers import Qwen3_5ForCausalLM  # noqa: F401
    except Exception as err:  # transformers raises what its parts raise
        rows.cannot_run(f"no transformers with torch: {type(err).__name__}: {err}")
    if device == "cuda" and not torch.cuda.is_available():
        rows.cannot_run(f"torch {torch.__version__} finds no CUDA")
    sizes = SMALL if args.small else FULL
    if args.child:
        return serve(args, sizes, device)
    run(args, sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
