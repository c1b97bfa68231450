"""Trains the tiny hybrid on generated questions: `python train.py --work DIR --out model`.

An untimed run is deterministic on one machine. Batches follow from the step and the
level, and the level follows from the accuracy so far. An interrupted run resumes from
the last checkpoint in the work folder.

    python train.py --recipe long --seconds 250 --device cuda --work DIR --out DIR/model
    python train.py --recipe mamba --seconds 4000 --work DIR --out DIR/model

These commands train wide heads on long notes, or Mamba2 layers, for the given number of seconds in
total. Rates and levels follow the remaining time, so that the rates fall to zero on any machine.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as processes
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, multiprocessing, nn

import mamba2
import model
from generate import KINDS, LONG, Prompt, Shape, prompt, write_shape
from lexicon import END, IDS, INSTRUCTION, QUESTION, encode, tokenizer_json
from model import (
    CHUNK,
    NARROW,
    WIDE,
    Config,
    Decays,
    Model,
    initialise,
    sampled,
    save,
    spans,
    widened,
)

ENGINE_WIDTH = 64
CPU = torch.device("cpu")
STORE_EVERY = 30.0  # seconds between checkpoints of a timed run
KEEP_EVERY = 10.0  # seconds between copies of weights, which are restored if a loss is not finite
SHOW_EVERY = 5.0  # seconds between lines about a timed run
PATIENCE = 20.0  # seconds for a batch from another process, before it is made here


@dataclass(frozen=True)
class Level:
    """One level of the curriculum: numbers of notes, questions per prompt, shape of notes.

    The next level begins after `least` steps, once the accuracy on single notes exceeds `enough`.
    In a timed run a level also ends when the share `until` of the time is over. `bare` is the share
    of prompts without the instruction. They begin with a note, so that the model learns notes with
    nothing before them. `part` is the share of the recipe's tokens in a batch.
    """

    notes: tuple[int, int]
    questions: int
    shape: Shape
    enough: float = 1.0
    least: int = 40
    bare: float = 0.0
    until: float = 1.0
    part: float = 1.0


@dataclass(frozen=True)
class Phase:
    """A part of the training with a separate optimiser. steps 0: until the time is over."""

    levels: tuple[Level, ...]
    steps: int
    peak: float = 1.0  # factor of the rates
    cooldown: float = 0.5  # share of the steps, or of the time, over which the rates fall to zero
    warmup: int = 50


def words(lo: int, hi: int, facts: tuple[int, int], base: Shape) -> Shape:
    """Returns a shape with notes of `lo` to `hi` words and another number of facts."""
    least, most = facts
    return replace(base, min_words=lo, max_words=hi, min_facts=least, max_facts=most)


FEW_MOVES = Shape(
    people=1, every=3, hands=4, seen=False, one=0.4, two=0.35, latest=0.25, holder=0.0
)
FIRST = replace(FEW_MOVES, one=0.7, two=0.15, latest=0.15)
EVEN = Shape(least_hands=2, one=0.25, two=0.25, latest=0.25, holder=0.25)

# The first phase learns to read, from two short notes to eight long ones. Only notes on the holders
# of an item mention the item. From the second phase on, notes repeat who has an item, so that the
# last note overwrites what several notes said before. If each holder had only one note, a plain sum
# of states could answer as well.
PHASES = (
    Phase(
        (
            Level((1, 2), 4, words(10, 20, (1, 2), FIRST), 0.85),
            Level((2, 3), 6, words(14, 28, (2, 3), FEW_MOVES), 0.85),
            Level((2, 4), 8, words(24, 50, (3, 4), FEW_MOVES), 0.8, 160),
            Level((2, 6), 12, words(40, 80, (3, 5), FEW_MOVES), 0.75, 120),
            Level((2, 8), 16, FEW_MOVES, 0.0, 251),
            Level((2, 8), 16, FEW_MOVES, bare=0.5),
        ),
        steps=2100,
    ),
    Phase(
        (
            Level((3, 5), 10, words(24, 50, (3, 4), EVEN), 0.0, 60, bare=0.5),
            Level((3, 7), 14, words(40, 80, (3, 5), EVEN), 0.0, 60, bare=0.5),
            Level((2, 8), 16, EVEN, bare=0.5),
        ),
        steps=300,
        peak=0.5,
        cooldown=0.85,
        warmup=20,
    ),
    Phase(
        (
            Level((2, 4), 10, words(24, 50, (3, 4), Shape()), 0.0, 140, bare=0.5),
            Level((2, 6), 14, words(40, 80, (3, 5), Shape()), 0.0, 120, bare=0.5),
            Level((2, 8), 16, Shape(), bare=0.5),
        ),
        steps=900,
        peak=0.7,
        cooldown=0.7,
        warmup=20,
    ),
    Phase(
        (Level((2, 8), 16, Shape(), bare=0.5),),
        steps=900,
        peak=0.6,
        cooldown=0.9,
        warmup=20,
    ),
)


# From the first words to long notes in one phase. Short prompts have the most questions per token.
# So the notes stay short until the model has learned who has an item, and a quarter of the later
# batches are short prompts.
TIMED = (
    Phase(
        (
            Level((1, 2), 4, words(10, 20, (1, 2), FIRST), 0.85, until=0.3, part=0.5),
            Level((2, 3), 6, words(14, 28, (2, 3), FEW_MOVES), 0.85, until=0.36, part=0.5),
            Level((2, 4), 8, words(24, 50, (3, 4), FEW_MOVES), 0.85, until=0.42, part=0.5),
            Level((2, 6), 14, words(60, 120, (4, 6), FEW_MOVES), 0.85, 80, 0.5, 0.48, 0.75),
            Level((2, 6), 16, EVEN, 0.9, 300, 0.5, 0.58, 0.75),
            Level((2, 6), 28, words(150, 300, (5, 8), LONG), 0.9, 100, 0.5, 0.66),
            Level((2, 8), 48, LONG, bare=0.5),
        ),
        steps=0,
        cooldown=0.7,
    ),
)


# As TIMED, but in about an hour on a CPU, and up to short notes. Batches of the first levels are
# small, because their prompts are small, and because their steps matter more than their tokens.
HOUR = (
    Phase(
        (
            Level((1, 2), 4, words(10, 20, (1, 2), FIRST), 0.85, until=0.16, part=0.5),
            Level((2, 3), 6, words(14, 28, (2, 3), FEW_MOVES), 0.85, until=0.27, part=0.5),
            Level((2, 4), 8, words(24, 50, (3, 4), FEW_MOVES), 0.85, 80, until=0.42, part=0.6),
            Level((2, 4), 10, words(24, 50, (3, 4), EVEN), 0.9, 120, 0.5, 0.56, 0.6),
            Level((2, 6), 14, words(40, 80, (3, 5), EVEN), 0.95, 120, 0.5, 0.7, 0.8),
            Level((2, 6), 16, Shape(), bare=0.5),
        ),
        steps=0,
        cooldown=0.7,
    ),
)


@dataclass(frozen=True)
class Recipe:
    phases: tuple[Phase, ...] = PHASES
    config: Config | mamba2.Config = NARROW
    decays: Decays = spans
    tokens: int = 6144  # per batch, padding included
    tokens_on_cpu: int = 0  # the same on a CPU; 0 = tokens
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    language: float = 0.1  # weight of the loss on words that are no answers
    earlier: float = 0.25  # share of batches from earlier levels
    back: int = 9  # how many levels earlier at most
    align: int = CHUNK  # lengths of rows are multiples of it

    def timed(self) -> bool:
        return self.phases[-1].steps == 0

    def shape(self) -> Shape:
        """Returns the shape of the prompts that the model is trained for."""
        return self.phases[-1].levels[-1].shape


RECIPES = {
    "short": Recipe(),
    "long": Recipe(
        TIMED, WIDE, sampled, tokens=65536, tokens_on_cpu=12288, back=2, align=2 * CHUNK
    ),
    "mamba": Recipe(HOUR, mamba2.Config(), sampled, back=2),
}


@dataclass(frozen=True)
class Share:
    """The part of every batch that one worker computes."""

    rank: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Rows:
    """A batch in the form in which processes exchange it."""

    ids: np.ndarray  # [B, n + 1] int16
    marks: np.ndarray  # [B, n + 1] int16: see Batch.answers
    lengths: np.ndarray  # [B] int16
    kinds: np.ndarray  # int8, of every question


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [B, n]
    targets: Tensor  # [B, n] the next words
    answers: Tensor  # [B, n] number of the question + 1 where the next word is its answer, else 0
    real: Tensor  # [B, n] the next word exists
    kinds: Tensor  # of every question


def make(seed: int, level: Level, tokens: int, share: Share = Share(), align: int = CHUNK) -> Rows:
    """Returns one worker's prompts. All have the same number of notes, and each has several
    questions and answers."""
    rng = torch.Generator().manual_seed(seed)
    lo, hi = level.notes
    k = int(torch.randint(lo, hi + 1, (), generator=rng))
    words = (level.shape.min_words + level.shape.max_words) // 2
    size = max(1, tokens // share.workers // (k * (words + 12) + 14 * level.questions + 14))
    rows: list[list[int]] = []
    marks: list[list[int]] = []
    kinds: list[int] = []
    for i in range(size):
        made = prompt(
            (seed * share.workers + share.rank) * 1024 + i, k, level.shape, level.questions
        )
        bare = float(torch.rand((), generator=rng)) < level.bare
        ids, mark = row(made, len(kinds), bare)
        kinds += [KINDS.index(q.kind) for q in made.questions]
        rows.append(ids)
        marks.append(mark)
    lengths = [len(ids) for ids in rows]
    n = -(-max(lengths) // align) * align
    full = np.zeros((size, n + 1), np.int16)
    mark = np.zeros_like(full)
    for i, ids in enumerate(rows):
        full[i, : len(ids)] = ids
        mark[i, : len(ids)] = marks[i]
    return Rows(full, mark, np.array(lengths, np.int16), np.array(kinds, np.int8))


def batch(rows: Rows, device: torch.device = CPU) -> Batch:
    """Returns the tensors of a batch on the device that computes with them."""

    def moved(a: np.ndarray) -> Tensor:
        t = torch.from_numpy(a)
        if device.type == "cuda":
            t = t.pin_memory()
        return t.to(device, non_blocking=True).long()

    full, mark, lengths = moved(rows.ids), moved(rows.marks), moved(rows.lengths)
    real = torch.arange(full.shape[1], device=device) < lengths[:, None]
    return Batch(full[:, :-1], full[:, 1:], mark[:, 1:], real[:, 1:], moved(rows.kinds))


class Feed:
    """Returns batches in the order of the requests. Other processes make them, if there are any.

    Create it before the GPU is used, because the processes are forked.
    """

    def __init__(self, makers: int):
        self.ahead = 2 * makers
        self.pool = processes.get_context("fork").Pool(makers) if makers else None
        self.asked: deque = deque()

    def ask(self, *args) -> None:
        made = self.pool.apply_async(make, args) if self.pool else None
        self.asked.append((args, made))

    def short(self) -> bool:
        return len(self.asked) <= self.ahead

    def take(self) -> Rows:
        args, made = self.asked.popleft()
        if made is None:
            return make(*args)
        try:
            return made.get(PATIENCE)
        except processes.TimeoutError:
            return make(*args)

    def close(self) -> None:
        if self.pool:
            self.pool.terminate()


def row(made: Prompt, first: int, bare: bool = False) -> tuple[list[int], list[int]]:
    """Returns token ids of a prompt with its questions and answers, and the answers' marks (see
    `Batch.answers`)."""
    ids = encode(" ".join([*([] if bare else [INSTRUCTION]), *(n.text for n in made.notes)]))
    mark = [0] * len(ids)
    for i, q in enumerate(made.questions):
        ask, answer = encode(QUESTION.format(q=q.text)), [*encode(q.answer), IDS[END]]
        ids += ask + answer
        mark += [0] * len(ask) + [first + i + 1] * len(answer)
    return ids, mark


class Muon:
    """Momentum whose step for a matrix is made orthogonal (Jordan et al. 2024)."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95):
        self.momentum = momentum
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for p in params:
            self.groups.setdefault((p.shape[0], p.shape[1]), []).append(p)
        self.moving = {s: torch.zeros_like(torch.stack(g)) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            grad = torch.stack([p.grad for p in group])
            moving = self.moving[shape].lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp(moving, self.momentum))
            scale = rate * max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_add_(group, list(update.unbind()), alpha=-scale)


def orthogonal(x: Tensor) -> Tensor:
    """Returns roughly the nearest orthogonal matrices, by five steps of a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).bfloat16()
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y.mT if tall else y).float()


def loss_of(net: Model, b: Batch, language: float) -> tuple[Tensor, Tensor]:
    """Returns the loss, and the values to log: the losses on answers and on other words, then the
    numbers of right and of asked questions of each kind.

    Nothing here waits for a GPU: words that do not count are masked, not removed.
    """
    targets = b.targets
    hidden = net.hidden(b.ids)
    logits = net.logits(hidden).float().flatten(0, 1)
    each = F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
    answer = b.answers > 0
    other = b.real & ~answer
    asked, rest = (each * answer).sum() / answer.sum(), (each * other).sum() / other.sum()
    with torch.no_grad():
        missed = answer & (logits.argmax(-1).view_as(targets) != targets)
        wrong = torch.zeros(len(b.kinds) + 1, device=b.ids.device)
        wrong.scatter_add_(0, b.answers.flatten(), missed.flatten().float())
        good = (wrong[1:] == 0).float()
    counts = torch.zeros(2, len(KINDS), device=b.ids.device)
    counts[0].scatter_add_(0, b.kinds, good)
    counts[1].scatter_add_(0, b.kinds, torch.ones_like(good))
    logged = torch.cat([torch.stack([asked, rest]).detach(), counts.flatten()])
    return asked + language * rest, logged


class Run:
    """A training run: everything that a checkpoint has.

    `limit` is the length of a timed run in seconds; `now` returns the seconds so far. Logged values
    are read every `every` steps, because reading waits for a GPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        share: Share,
        device: torch.device = CPU,
        feed: Feed | None = None,
        limit: float = math.inf,
    ):
        self.recipe = recipe
        self.share = share
        self.device = device
        self.feed = feed or Feed(0)
        self.limit = limit
        gpu = device.type == "cuda"
        self.every = 10 if gpu else 1
        net = Model(recipe.config, torch.bfloat16, 2 * CHUNK if gpu else CHUNK)
        initialise(net, 0, recipe.decays)
        self.model = net.to(device)
        self.now: Callable[[], float] = lambda: 0.0
        self.seconds = 0.0
        self.damped = 1.0
        self.good, self.kept = self.weights(), 0.0
        self.begin(0)

    def weights(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def begin(self, phase: int) -> None:
        """Starts a phase with the current weights."""
        self.phase = phase
        self.optimise()
        self.step, self.level, self.since = 0, 0, 0
        self.asked = 0
        self.levels: deque[int] = deque()  # of the requested batches
        self.pending: list[tuple[dict, Tensor]] = []
        self.accuracy = dict.fromkeys(KINDS, 0.0)

    def optimise(self) -> None:
        """Starts the optimisers."""
        matrices, others = [], []
        for name, p in self.model.named_parameters():
            big = p.dim() == 2 and min(p.shape) >= 64 and "embed" not in name
            (matrices if big else others).append(p)
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            others,
            betas=(0.9, 0.98),
            eps=1e-10,
            weight_decay=0.0,
            fused=True if self.device.type == "cuda" else None,
        )

    def left(self) -> tuple[float, float]:
        """Returns what remains of this phase, and its length; both in steps, or both in seconds."""
        steps = self.recipe.phases[self.phase].steps
        if steps:
            return steps - self.step, steps
        return max(0.0, self.limit - self.seconds), self.limit

    def advance(self) -> bool:
        """Begins the next phase if this phase has ended. Returns False if it was the last."""
        if self.left()[0] == 0:
            if self.phase + 1 == len(self.recipe.phases):
                return False
            self.begin(self.phase + 1)
        return True

    def rate(self) -> float:
        p = self.recipe.phases[self.phase]
        left, whole = self.left()
        up = min(1.0, (self.step + 1) / p.warmup)
        return self.damped * p.peak * min(up, left / (whole * p.cooldown), 1.0)

    def ask(self) -> None:
        """Requests the next batch that was not requested yet."""
        r, level, step = self.recipe, self.level, self.asked
        pick = torch.Generator().manual_seed(self.phase + step)
        if float(torch.rand((), generator=pick)) < r.earlier:
            least = max(0, level - r.back)
            level = int(torch.randint(least, level + 1, (), generator=pick))
        at = r.phases[self.phase].levels[level]
        tokens = int(r.tokens * at.part)
        self.feed.ask(self.phase * 10**7 + step, at, tokens, self.share, r.align)
        self.levels.append(level)
        self.asked += 1

    def train_step(self) -> list[dict[str, object]]:
        """Runs one step. Returns the last steps' logged values, if it is time to read them."""
        r = self.recipe
        while self.feed.short():
            self.ask()
        began = time.monotonic()
        rows, level = self.feed.take(), self.levels.popleft()
        waited = time.monotonic() - began
        b = batch(rows, self.device)
        loss, logged = loss_of(self.model, b, r.language)
        loss.backward()
        logged = self.averaged(logged)
        rate = self.rate()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = r.other_rate * rate
        self.adam.step()
        self.muon.step(r.matrix_rate * rate)
        self.model.zero_grad()
        self.step += 1
        self.since += 1
        size = list(b.ids.shape)
        at = {"step": self.step, "batch": level, "size": size, "rate": rate, "waited": waited}
        self.pending.append((at, torch.cat([logged, norm[None]])))
        if self.step % self.every and self.left()[0]:
            return []
        return self.settle()

    def settle(self) -> list[dict[str, object]]:
        """Reads the logged values of the last steps. Depending on them, moves on to the next level
        or goes back to earlier weights."""
        out = []
        rows = torch.stack([logged for _, logged in self.pending]).tolist()
        for (at, _), (*losses, norm) in zip(self.pending, rows, strict=True):
            good, asked = losses[2 : 2 + len(KINDS)], losses[2 + len(KINDS) :]
            right = [g / n if n else None for g, n in zip(good, asked, strict=True)]
            stats = dict(zip(("answer", "language", *KINDS), losses[:2] + right, strict=True))
            if at["batch"] == self.level:
                self.judge(stats)
            out.append(at | {"phase": self.phase, "level": self.level} | stats | {"norm": norm})
        self.pending.clear()
        self.by_time()
        if not all(math.isfinite(s["answer"] + s["norm"]) for s in out):
            self.retreat()
            out[-1]["retreat"] = self.damped
        elif self.seconds > self.kept + KEEP_EVERY:
            self.good, self.kept = self.weights(), self.seconds
        return out

    def retreat(self) -> None:
        """Goes back to the last copy of the weights, and continues with smaller steps."""
        self.model.load_state_dict(self.good)
        self.optimise()
        self.damped *= 0.7

    def averaged(self, logged: Tensor) -> Tensor:
        """Averages gradients, logged values and time over the workers, in one exchange. Returns the
        logged values."""
        self.seconds = self.now()
        if self.share.workers == 1:
            return logged
        grads = [p.grad for p in self.model.parameters()]
        logged = torch.cat([logged, torch.tensor([self.seconds])])
        flat = torch.cat([g.flatten() for g in grads] + [logged])
        distributed.all_reduce(flat)
        flat /= self.share.workers
        sizes = [g.numel() for g in grads] + [len(logged)]
        *parts, logged = flat.split(sizes)
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        self.seconds = float(logged[-1])
        return logged[:-1]

    def judge(self, stats: dict) -> None:
        """Moves on to the next level when the accuracy on this one is good enough."""
        for kind in KINDS:
            if stats[kind] is not None:
                self.accuracy[kind] += 0.05 * (stats[kind] - self.accuracy[kind])
        level = self.recipe.phases[self.phase].levels[self.level]
        if self.accuracy["one"] > level.enough and self.since > level.least:
            self.next_level()

    def by_time(self) -> None:
        """Moves on to the next level of a timed run when the time of this one is over."""
        if self.limit < math.inf:
            level = self.recipe.phases[self.phase].levels[self.level]
            if self.seconds > level.until * self.limit:
                self.next_level()

    def next_level(self) -> None:
        if self.level + 1 < len(self.recipe.phases[self.phase].levels):
            self.level, self.since = self.level + 1, 0
            self.accuracy = dict.fromkeys(KINDS, 0.0)

    def store(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.moving,
            "rest": (self.step, self.level, self.seconds, self.since, self.accuracy),
            "phase": self.phase,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        self.begin(state["phase"])
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.moving = state["muon"]
        self.step, self.level, self.seconds, self.since, self.accuracy = state["rest"]
        self.asked, self.good = self.step, self.weights()


def write_model(net: Model, folder: Path, shape: Shape = Shape()) -> None:
    """Writes a folder that transformers and vLLM load. Heads get a width for which vLLM has
    kernels."""
    narrow = isinstance(net.c, Config) and net.c.linear_key_head_dim < ENGINE_WIDTH
    save(widened(net, ENGINE_WIDTH) if narrow else net, folder)
    if shape != Shape():
        write_shape(shape, folder)
    (folder / "tokenizer.json").write_text(tokenizer_json() + "\n")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "model_max_length": net.c.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def fuse() -> None:
    """Compiles everything but matrix products. Results are the same up to rounding."""
    for owner, name in (
        (model.DeltaNet, "prepare"),
        (model.DeltaNet, "finish"),
        (model.Mlp, "forward"),
        (model.Norm, "forward"),
        (mamba2, "chunked"),
        (mamba2.Mamba2, "prepare"),
        (mamba2.Mamba2, "finish"),
        (mamba2.Norm, "forward"),
    ):
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=True))


def work(rank: int, args: argparse.Namespace) -> None:
    """Runs one worker with one thread. Several workers wait for each other less often than the
    threads of one process would."""
    torch.set_num_threads(1)
    share = Share(rank, args.workers)
    if share.workers > 1:
        store = distributed.FileStore(str(args.work / "meeting"), share.workers)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=share.workers)
    feed = Feed(args.makers)
    if args.fuse:
        fuse()
    if args.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    given = {n: v for n, v in vars(args).items() if v is not None and n in OPTIONS}
    recipe = replace(RECIPES[args.recipe], **given)
    run = Run(recipe, share, args.device, feed, args.seconds or math.inf)
    checkpoint = args.work / "checkpoint.pt"
    if checkpoint.exists():
        run.restore(checkpoint)
    began = (args.began if recipe.timed() else time.monotonic()) - run.seconds
    run.now = lambda: time.monotonic() - began
    stored = shown = run.now()
    with (args.work / "log.jsonl").open("a") if rank == 0 else nullcontext() as log:
        while run.advance():
            lines = run.train_step()
            if log is None or not lines:
                continue
            seconds = {"seconds": round(run.seconds, 1)}
            log.writelines(json.dumps(rounded(seconds | line)) + "\n" for line in lines)
            log.flush()
            if recipe.timed() and run.now() - shown > SHOW_EVERY:
                shown = run.now()
                print(json.dumps(rounded(seconds | lines[-1])), flush=True)
            late = recipe.timed() and run.now() - stored > STORE_EVERY
            if late or (not recipe.timed() and run.step % 100 == 0):
                stored = run.now()
                run.store(checkpoint)
                write_model(run.model, args.work / "model", recipe.shape())
    feed.close()
    if rank == 0:
        write_model(run.model, args.out, recipe.shape())


def rounded(stats: dict[str, object]) -> dict[str, object]:
    return {n: float(f"{v:.4g}") if isinstance(v, float) else v for n, v in stats.items()}


OPTIONS = ("tokens", "matrix_rate", "other_rate", "language")


def age() -> float:
    """Returns the seconds since this process began, including its imports, which take long."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return seconds if 0 < seconds < 120 else 0.0  # a sandbox may count from elsewhere


def main() -> None:
    began = time.monotonic() - age()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--recipe", choices=RECIPES, default="short")
    parser.add_argument("--seconds", type=float, help="length of a timed run: long, mamba")
    parser.add_argument("--device", type=torch.device, default=CPU)
    parser.add_argument("--workers", type=int, help="that train, on the CPU; default: 2")
    parser.add_argument("--makers", type=int, help="of batches; default: 0, beside a GPU up to 14")
    parser.add_argument(
        "--fuse", action=argparse.BooleanOptionalAction, help="compile; default: on the CPU"
    )
    for name in OPTIONS:
        kind = int if name == "tokens" else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    args = parser.parse_args()
    recipe = RECIPES[args.recipe]
    if recipe.timed() != (args.seconds is not None):
        parser.error("--seconds belongs to the recipes long and mamba, which need it")
    gpu = args.device.type == "cuda"
    if gpu and (args.workers or 1) > 1:
        parser.error("one worker trains on a GPU")
    defaults = {
        "began": began,
        "workers": 1 if gpu else 2,
        "makers": max(1, min(14, (os.cpu_count() or 1) - 2)) if gpu else 0,
        "fuse": not gpu,
    }
    if recipe.tokens_on_cpu and not gpu:
        defaults["tokens"] = recipe.tokens_on_cpu
    for name, value in defaults.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "meeting").unlink(missing_ok=True)
    if args.workers == 1:
        work(0, args)
    else:
        multiprocessing.spawn(work, (args,), args.workers)


if __name__ == "__main__":
    main()
