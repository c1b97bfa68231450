"""Measures the gain of reuse with two transformers engines at one daemon with GPU memory.

Each engine is a process. The first engine computes a prompt, publishes its segments and saves its
prefix. The second engine reuses them, from copies on the GPU and from host memory, also at other
positions. The second engine's logits are compared with the first engine's, and its times to the
first token with those of a full computation. The model is the one in this repository, whose answers
can be right or wrong, or a larger model with random weights and heads of the usual size. Flash
Linear Attention is hidden from transformers. With `--fla`, one engine uses it and only measures the
time to the first token.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fla_kernels
import rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spliced_connector.hf import SplicedTransformers

REUSE_SHARE = 0.5
"""Largest permitted time of a request spliced from the GPU, relative to one from host memory."""

TOLERANCE = 0.02
"""Tolerance of packed tuples."""

HELD_SHARE = 0.25
"""Largest permitted bytes of keys and values if seven requests read the same segments in place,
relative to the bytes if each request has copies. Each request also has rows of its own seams, a
fiftieth of its tokens."""

EXACT, ROUNDED = 0.1, 0.25
"""Permitted differences of logits, relative to their spread. EXACT is for the same numbers added in
another order. ROUNDED is for a comparison with the model's own forward, as in the canary. Both are
guesses for bfloat16; in float32 both differences are near 1e-6. Wrong data gives 1 and more."""

MOVES = 4096
"""Number of tokens of a prompt above which moving the bytes of its segments takes most of the time,
not launching kernels."""

PATIENCE = 20.0
"""Longest wait in seconds for operations that usually take less than one: attaching memory, making
copies."""


FEWEST, SECONDS = 3, 3.0
"""Minimum number of timed rounds, and the sum of their seconds after which no further round is
timed. After twice this sum, fewer rounds suffice."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model with random weights, and of its prompts."""

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


# An engine's process: one command per line, one answer per line.


def build(name: str, sizes: Sizes, device: str) -> PreTrainedModel:
    """Returns the model, with the same weights in every process."""
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
    with torch.device(device):  # weights are drawn on the device, which saves seconds
        model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


class Engine:
    """A model with four adapters: for GPU memory and for host memory, each without and with packed
    tuples. Two more are made on demand: in one the daemon writes the rows, in the other rows are
    read in place."""

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
        naming = Naming(b"gpu-check".ljust(32, b"\0"), tolerance=0.0)
        settings = HFSettings(keep_all=True, device_is_host_memory=device == "cpu")
        self._clients = [
            Client(dataclasses.replace(patient, device=gpu)),
            Client(patient),
        ]
        # With GPU memory, and with host memory; then the same two with packed tuples.
        self._engines = [
            SplicedTransformers(model, c, dataclasses.replace(naming, tolerance=t), settings)
            for t in (0.0, TOLERANCE)
            for c in self._clients
        ]
        daemon = dataclasses.replace(settings, compute="daemon")
        self._make_written = lambda: SplicedTransformers(model, self._clients[0], naming, daemon)
        in_place = dataclasses.replace(settings, in_place=True)
        self._make_paged = lambda: SplicedTransformers(model, self._clients[0], naming, in_place)

    def state(self) -> dict[str, object]:
        """Returns why the model is inert, and why GPU memory is not used; "" for each if not so."""
        self._clients[0].wait_device(PATIENCE)
        return {"inert": self._engines[0].inert, "device": self._engines[0].device_state}

    def prefill(
        self,
        ids: list[int],
        cuts: list[int],
        mode: Any,
        gpu: bool,
        keep: bool,
        rounds: int,
        packed: bool = False,
    ) -> dict[str, object]:
        """Returns median seconds to the first token, and the result of the last round. If there are
        several rounds, the first does not count, because it may load and compile."""
        engine: SplicedTransformers = self._engines[2 * packed + (not gpu)]
        took: list[float] = []
        while not _enough(took, rounds):
            self._wait()
            start = time.perf_counter()
            done = engine.prefill(ids, cuts, mode, keep=False)
            first = int(done.logits.argmax())  # waits for the device
            took.append(time.perf_counter() - start)
        if keep:
            engine.store(done)
        return {
            "seconds": statistics.median(took[1:] or took),
            "logits": done.logits.float().tolist(),
            "first": first,
            "reused": done.reused,
            "on_device": done.on_device,
            "trouble": done.trouble,
        }

    def generate(
        self, ids: list[int], cuts: list[int], mode: Any, gpu: bool, n: int
    ) -> dict[str, object]:
        """Returns greedy tokens."""
        engine = self._engines[0 if gpu else 1]
        out = engine.generate(ids, cuts, mode, max_new_tokens=n, do_sample=False)
        return {"tokens": out[0, len(ids) :].tolist()}

    def resident(
        self, prompts: list[tuple[list[int], list[int]]], paged: bool, rounds: int
    ) -> dict[str, object]:
        """Measures requests that are resident at the same time. Returns the bytes of their keys and
        values (rows in the daemon's memory count once), median seconds to the first token, and for
        the last request its logits and median seconds of a further token."""
        from spliced_connector.hf.paged import PagedLayer, held_bytes

        engine = self._make_paged() if paged else self._engines[0]
        took, residents = [], []
        for ids, cuts in prompts:
            self._wait()
            start = time.perf_counter()
            done = engine.prefill(ids, cuts, "splice", keep=False)
            int(done.logits.argmax())  # waits for the device
            took.append(time.perf_counter() - start)
            residents.append(done)
        held = held_bytes(done.cache for done in residents)
        one = self._torch.tensor([[1]], device=self._device)
        tokens = []
        for _ in range(4 * rounds):
            self._wait()
            start = time.perf_counter()
            with self._torch.no_grad():
                out = engine.model(one, past_key_values=done.cache, use_cache=True)
            int(out.logits[0, -1].argmax())
            tokens.append(time.perf_counter() - start)
        good = [done.release() for done in residents]
        return {
            "held": held,
            "logits": done.logits.float().tolist(),
            "seconds": statistics.median(took),
            "token": statistics.median(tokens[rounds:]),
            "in_place": sum(
                isinstance(x, PagedLayer) for done in residents for x in done.cache.layers
            ),
            "reused": done.reused,
            "on_device": done.on_device,
            "good": all(good),
        }

    def written(self, ids: list[int], cuts: list[int], rounds: int) -> dict[str, object]:
        """Alternates two splices: in one the daemon's kernels write the rows into memory of this
        process, in the other this process's kernels write them. Returns for both the median seconds
        to the first token, and the logits."""
        engines = {"daemon": self._make_written(), "engine": self._engines[0]}
        until = time.monotonic() + PATIENCE
        while (why := engines["daemon"].written_state) and time.monotonic() < until:
            time.sleep(0.01)
        took: dict[str, list[float]] = {name: [] for name in engines}
        out: dict[str, object] = {"trouble": why}
        while not _enough(took["daemon"], max(rounds, 2)):
            for name, engine in engines.items():
                self._wait()
                start = time.perf_counter()
                done = engine.prefill(ids, cuts, "splice", keep=False)
                int(done.logits.argmax())  # waits for the device
                took[name].append(time.perf_counter() - start)
                out[f"{name}_logits"] = done.logits.float().tolist()
                out[f"{name}_on_device"] = done.on_device
        for name, seconds in took.items():
            out[f"{name}_seconds"] = statistics.median(seconds[1:])
        composed = engines["daemon"].composed
        out["walks"] = composed.daemon, sum(composed.reasons.values())
        out["reasons"] = "; ".join(composed.reasons)
        return out

    def drafted(self, ids: list[int], cuts: list[int], n: int, right: int) -> dict[str, object]:
        """Decodes greedily after a splice: one token at a time, and then with `right` drafts at a
        time, which are the tokens of the round before. right 0: with drafts that are wrong."""
        engine, behind = self._engines[0], len(ids)
        said: list[int] = []

        def known(tokens: Sequence[int]) -> Sequence[int]:
            at = len(tokens) - behind
            return said[at : at + right] if right else [said[at] ^ 1, 0, 0]

        def nothing(_: Sequence[int]) -> Sequence[int]:
            return []

        out: dict[str, object] = {}
        for name, drafter in (("one", nothing), ("drafts", known)):
            for _ in range(4):  # the first round loads new kernels
                self._wait()
                start = time.perf_counter()
                line = engine.generate(
                    ids, cuts, "splice", max_new_tokens=n, do_sample=False, drafter=drafter
                )
                got = line[0, behind:].tolist()
                out[name] = (time.perf_counter() - start) / len(got)
                # Rows that are computed together round differently, so that an equally likely
                # token may come first. Then the next round's drafts are this round's tokens.
                same, said = got == said, got
                if same:
                    break
            out[f"{name}_tokens"] = got
            out[f"{name}_walks"] = engine.drafted.walks if engine.drafted else 0
        return out

    def spent(self, ids: list[int], cuts: list[int], mode: Any, gpu: bool) -> dict[str, object]:
        """Returns milliseconds of device time in total, and of the kernels that take the most."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self._engines[0 if gpu else 1].prefill(ids, cuts, mode, keep=False)
            self._wait()
        took = {one.key: one.self_device_time_total / 1e3 for one in seen.key_averages()}
        most = sorted(took.items(), key=lambda item: -item[1])
        return {"total": sum(took.values()), "most": most[:4]}

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _enough(took: list[float], rounds: int) -> bool:
    """Returns whether the timed rounds suffice. If several are wanted, the first does not count."""
    if rounds == 1 or not took:
        return bool(took)
    counted = took[1:]
    if len(counted) >= rounds or sum(counted) > 2 * SECONDS:
        return True
    return len(counted) >= FEWEST and sum(counted) > SECONDS


def serve(args: argparse.Namespace, sizes: Sizes) -> int:
    """Answers commands until standard input ends, which means that the parent has ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' output must not mix with answers
    late = "an engine stopped at "
    rows.watch(lambda at: print(json.dumps({"late": late + at}), file=answers, flush=True), 2.0)
    device = loaded(args.fla)
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


def loaded(with_fla: bool) -> str:
    """Imports what an engine needs and returns the device. Ends the process if that fails."""
    device = os.environ.get("GPU_CHECK_TORCH", "cuda")
    try:
        import torch

        if with_fla:
            fla_kernels.quicken()
            import fla.ops.gated_delta_rule  # noqa: F401
        else:
            fla_kernels.hide()
        from transformers import Qwen3_5ForCausalLM  # noqa: F401
    except Exception as err:  # imports raise whatever their parts raise
        lacking = "no FLA with Triton, or" if with_fla else "no"
        rows.cannot_run(f"{lacking} transformers with torch: {type(err).__name__}: {err}")
    if device == "cuda" and not torch.cuda.is_available():
        rows.cannot_run(f"torch {torch.__version__} finds no CUDA")
    return device


class LateError(Exception):
    """An engine ran out of time; the text says where it was."""


class Process:
    """An engine in a separate process, which answers in the order of requests."""

    def __init__(self, args: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--child", *sys.argv[1:]]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **asked: object) -> dict[str, Any]:
        """Sends a command and returns the engine's answer. Raises RuntimeError for an error in the
        engine, and LateError."""
        self.send(do, **asked)
        return self.receive()

    def send(self, do: str, **asked: object) -> None:
        """Sends a command without waiting for its answer."""
        if self._process.stdin is None:
            raise RuntimeError("no pipe to an engine")
        with suppress(BrokenPipeError):  # `receive` reports it
            print(json.dumps({"do": do, **asked}), file=self._process.stdin, flush=True)

    def receive(self) -> dict[str, Any]:
        """Returns the next answer."""
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            code = self._process.wait(PATIENCE)
            if code == rows.CANNOT_RUN:  # it has printed the reason
                sys.exit(code)
            raise RuntimeError(f"an engine ended with {code}")
        answer: dict[str, Any] = json.loads(line)
        if "late" in answer:
            raise LateError(answer["late"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the engine's process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(min(10.0, max(0.1, rows.left())))
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def check(name: str) -> Iterator[None]:
    """Adds a row for an error, after which the other checks continue."""
    try:
        yield
    except (RuntimeError, AssertionError) as err:
        rows.holds(name, str(err) or type(err).__name__)


def off(a: list[float], b: list[float]) -> float:
    """Returns the largest difference, relative to the spread of b."""
    spread = statistics.pstdev(b) or 1.0
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / spread


@dataclass(frozen=True)
class Prompt:
    """Segments, followed by a question."""

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
        """Returns a prompt with another first segment, then the other segments in another order."""
        return Prompt([self.segments[0][::-1], *self.segments[:0:-1]], self.query)


def drawn(sizes: Sizes, seed: int) -> Prompt:
    draw = random.Random(seed)

    def some(n: int) -> list[int]:
        return [draw.randrange(2, sizes.vocabulary) for _ in range(n)]

    return Prompt([some(sizes.tokens) for _ in range(sizes.segments)], some(32))


def questions(directory: Path, n: int) -> list[tuple[Prompt, list[int]]]:
    """Reads the first n questions of the model, and their right answers."""
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
    """Prints the rows."""
    name = "the model that came along" if args.model != "random" else "a model of random numbers"
    rows.watch(lambda at: rows.holds(f"{name}: in time", f"stopped at {at}"))
    if args.model != "random":
        shipped = questions(Path(args.model), 2 if sizes is SMALL else 12)
        prompt = shipped[0][0]
    else:
        shipped, prompt = [], drawn(sizes, 1)
    began = time.monotonic()
    engines = [Process(args) for _ in range(1 if args.fla else 2)]
    try:
        for engine in engines:
            engine.send("state")
        said = [engine.receive() for engine in engines]
        rows.figure(f"{name}{with_fla(args)}: engines ready", time.monotonic() - began, "s")
        if args.fla:
            plain_once(name + with_fla(args), prompt, engines[0])
            plainly(name + with_fla(args), prompt, engines[0], sizes)
            return
        lacks = [one["inert"] or one["device"] for one in said]
        for which, trouble in zip(("first", "second"), lacks, strict=True):
            rows.holds(f"{name}: the {which} engine has memory of the GPU", trouble)
        if any(lacks):
            return  # the rows that follow would measure host memory alone
        compare(name, prompt, *engines, sizes)
        if shipped:
            with check(f"{name}: answers"):
                answers(name, shipped, *engines)
        elif os.environ.get("GPU_CHECK_TORCH", "cuda") == "cuda":
            profiled(name, prompt, engines[1])
    except LateError as err:
        rows.holds(f"{name}: in time", str(err))
    finally:
        for engine in engines:
            engine.close()


def with_fla(args: argparse.Namespace) -> str:
    return ", with FLA that is not tuned" if args.fla else ""


def sized(p: Prompt) -> str:
    return f"{len(p.ids)} tokens in {len(p.segments)} segments"


def plain_once(name: str, p: Prompt, engine: Process) -> None:
    """Computes an engine's first prompt by the model's own forward: it loads and compiles."""
    once = engine.ask("prefill", **_plain(p), rounds=1)
    title = f"{name}: first token, no cache, {sized(p)}: in the first round"
    rows.figure(title, once["seconds"] * 1e3, "ms")


def plainly(name: str, p: Prompt, engine: Process, sizes: Sizes) -> dict[str, Any]:
    """Measures the time to the first token without a cache, by the model's own forward."""
    plain = engine.ask("prefill", **_plain(p), rounds=sizes.rounds)
    rows.figure(f"{name}: first token, no cache, {sized(p)}", plain["seconds"] * 1e3, "ms")
    return plain


def _plain(p: Prompt) -> dict[str, Any]:
    return {"ids": p.ids, "cuts": p.cuts, "mode": "none", "gpu": False, "keep": False}


def compare(name: str, p: Prompt, writer: Process, reader: Process, sizes: Sizes) -> None:
    """Measures prefixes and splices of one prompt."""
    # Segments are published in another order. The first segment, which has a separate form and is
    # continued as a prefix, is published alone. So no whole prompt is known.
    known = (p.elsewhere(), Prompt(p.segments[:1], p.query))
    for one in known:
        writer.send(
            "prefill", ids=one.ids, cuts=one.cuts, mode="splice", gpu=False, keep=True, rounds=1
        )
    asked = {"ids": p.ids, "cuts": p.cuts, "mode": "splice"}
    writer.send("prefill", **asked, gpu=False, keep=False, rounds=1)
    plain_once(name, p, reader)  # while the other engine works, unlike the later rounds
    for _ in known:
        writer.receive()
    want: dict[str, Any] | None = None
    with check(f"{name}: splice in the first engine"):
        want = writer.receive()
    plain = plainly(name, p, reader, sizes)
    # Segments of the small model are too small to time: it only tests correctness.
    bar = REUSE_SHARE if len(p.ids) > MOVES else 0.0
    with check(f"{name}: splice"):
        reused(f"{name}: splice", want, asked, reader, EXACT, sizes, plain["seconds"], bar)
    with check(f"{name}: rows written by the daemon"):
        written(f"{name}: rows written by the daemon", p, reader, sizes)
    with check(f"{name}: splice of packed tuples"):
        kept = {"packed": True, "gpu": False, "rounds": 1}
        for one in known:
            writer.ask("prefill", ids=one.ids, cuts=one.cuts, mode="splice", keep=True, **kept)
        want = writer.ask("prefill", **asked, keep=False, **kept)
        title = f"{name}: splice of packed tuples"
        also = asked | {"packed": True}
        reused(title, want, also, reader, EXACT, sizes, plain["seconds"], 0.0)
    with check(f"{name}: rows read in place"):
        read_in_place(name, p, writer, reader, sizes)
    if len(p.ids) > MOVES or sizes is SMALL:
        with check(f"{name}: drafts"):
            with_drafts(name, p, reader, sizes)
    # The prefix comes last, because splices would continue it.
    asked["mode"] = "prefix"
    with check(f"{name}: prefix"):
        writer.ask("prefill", **asked, gpu=False, keep=True, rounds=1)
        reused(f"{name}: prefix", plain, asked, reader, ROUNDED, sizes, plain["seconds"], 0.0)


def reused(
    title: str, want: dict[str, Any] | None, asked: dict[str, Any], reader: Process, bound: float,
    sizes: Sizes, plain: float, bar: float,
) -> None:  # fmt: skip
    """Runs one mode in the second engine, from both kinds of memory. bar: the largest permitted
    time from the GPU relative to host memory, 0 for any."""
    until = time.monotonic() + PATIENCE
    while True:  # the copies are made on the first request
        gpu = reader.ask("prefill", gpu=True, **asked, keep=False, rounds=1)
        if gpu["on_device"] == gpu["reused"] > 0 or time.monotonic() > until:
            break
    whole = gpu["on_device"] == gpu["reused"] > 0
    total = len(asked["ids"])
    rows.figure(f"{title}: tokens of {total} that are reused", gpu["reused"], "tokens")
    said = f"{gpu['on_device']} of {gpu['reused']} reused tokens: {gpu['trouble']}"
    rows.holds(f"{title}: all that is reused comes from the GPU", "" if whole else said)
    took: dict[str, float] = {}
    for what in ("the GPU", "memory"):
        with check(f"{title}: from {what}"):
            got = reader.ask(
                "prefill", gpu=what != "memory", **asked, keep=False, rounds=sizes.rounds
            )
            took[what] = got["seconds"] * 1e3
            named = f"{title}: first token, from {what}, beside no cache"
            rows.within(named, took[what], plain * 1e3, "ms")
            if want is not None:
                difference = off(got["logits"], want["logits"])
                rows.at_most(f"{title}: logits from {what}", difference, "of spread", bound)
    if len(took) == 2:
        named = f"{title}: first token, from the GPU, beside from memory"
        rows.within(named, took["the GPU"], took["memory"], "ms", bar)


def written(title: str, p: Prompt, reader: Process, sizes: Sizes) -> None:
    """Compares two splices from the GPU: in one the daemon's kernels write the rows into the
    engine's memory, in the other the engine's process writes them."""
    got = reader.ask("written", ids=p.ids, cuts=p.cuts, rounds=sizes.rounds)
    done, others = got["walks"]
    whole = done and not others and got["daemon_on_device"] == got["engine_on_device"] > 0
    said = f"{done} walks, {others} elsewhere: {got['trouble'] or got['reasons']}"
    rows.holds(f"{title}: all walks", "" if whole else said)
    difference = off(got["daemon_logits"], got["engine_logits"])
    rows.at_most(f"{title}: logits", difference, "of spread", EXACT)
    took = got["daemon_seconds"] * 1e3, got["engine_seconds"] * 1e3
    rows.within(f"{title}: first token, beside launched by the engine", *took, "ms")


def read_in_place(name: str, p: Prompt, writer: Process, reader: Process, sizes: Sizes) -> None:
    """Runs requests with the same segments in different orders: each with its own copy of the rows,
    and then with one copy that all requests read."""
    first, *others = p.segments
    turned = [
        Prompt([first, *others[i:], *others[:i]], p.query) for i in range(min(8, len(others)))
    ]
    asked = {"prompts": [(one.ids, one.cuts) for one in turned], "rounds": sizes.rounds}
    copies = reader.ask("resident", paged=False, **asked)
    lying = reader.ask("resident", paged=True, **asked)
    title = f"{name}: {len(turned)} requests of the same segments"
    whole = lying["in_place"] and lying["on_device"] == lying["reused"]
    rows.holds(f"{title}: rows are read in the GPU's memory", "" if whole else str(whole))
    rows.holds(f"{title}: leases were good", "" if lying["good"] else "one had ended")
    difference = off(lying["logits"], copies["logits"])
    rows.at_most(f"{title}: logits of reading in place", difference, "of spread", EXACT)
    held = (lying["held"] / 1048576, copies["held"] / 1048576)
    bar = HELD_SHARE if len(p.ids) > MOVES else 0.0
    rows.within(f"{title}: keys and values, in place beside copies", *held, "MiB", bar)
    for what, key in (("first token", "seconds"), ("a token behind it", "token")):
        took = (lying[key] * 1e3, copies[key] * 1e3)
        rows.within(f"{title}: {what}, in place beside copies", *took, "ms")


def with_drafts(name: str, p: Prompt, reader: Process, sizes: Sizes) -> None:
    """Decodes greedily after a splice, several tokens at a time."""
    n = 24 if sizes is FULL else 6
    for right in (3, 7, 0):
        got = reader.ask("drafted", ids=p.ids, cuts=p.cuts, n=n, right=right)
        what = f"{right} drafts that are right" if right else "3 drafts that are wrong"
        same = sum(
            1
            for _ in itertools.takewhile(
                lambda pair: pair[0] == pair[1],
                zip(got["one_tokens"], got["drafts_tokens"], strict=True),
            )
        )
        title = f"{name}: decoding with {what}"
        rows.figure(f"{title}: the same tokens, of {n}", same, "tokens")
        rows.figure(f"{title}: walks for {n} tokens", got["drafts_walks"], "walks")
        took = (got["drafts"] * 1e3, got["one"] * 1e3)
        rows.within(f"{title}: a token, beside one at a time", *took, "ms")


def profiled(name: str, p: Prompt, engine: Process) -> None:
    """Reports the device's work in each mode, if its profiler is available."""
    for mode, gpu, what in (
        ("splice", True, "spliced from the GPU"), ("splice", False, "spliced from memory"),
        ("none", False, "no cache"),
    ):  # fmt: skip
        title = f"{name}: work of the device, {what}"
        try:
            found = engine.ask("spent", ids=p.ids, cuts=p.cuts, mode=mode, gpu=gpu)
        except RuntimeError as err:
            rows.skip(title, str(err))
            return
        rows.figure(title, found["total"], "ms")
        for kernel, took in found["most"]:
            rows.figure(f"{title}: {kernel[:80]}", took, "ms")


def answers(
    name: str, shipped: list[tuple[Prompt, list[int]]], writer: Process, reader: Process
) -> None:
    """Answers questions in the second engine from the first engine's segments, and without them."""
    right = {"none": 0, "splice": 0}
    same = n = 0
    longest = 0.0
    for prompt, answer in shipped:
        if rows.left() < 2 * longest + 5:  # complete rows of fewer questions are worth more
            break
        began = time.monotonic()
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
        n += 1
        longest = max(longest, time.monotonic() - began)
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
    parser.add_argument("--fla", action="store_true")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    sizes = SMALL if args.small else FULL
    if args.child:
        return serve(args, sizes)
    run(args, sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
