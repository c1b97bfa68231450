"""Trains the tiny hybrid on generated questions: `python train.py --work DIR --out model`.

One thing decides the run: the seed. Batches follow from the step and the level,
the level from the accuracy so far, so a machine repeats its own run. A run that
was stopped goes on from the last checkpoint in the work folder.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, multiprocessing, nn

import model
from generate import KINDS, Prompt, Shape, prompt
from lexicon import END, IDS, INSTRUCTION, QUESTION, encode, tokenizer_json
from model import CHUNK, Config, Model, initialise, save, widened

ENGINE_WIDTH = 64


@dataclass(frozen=True)
class Level:
    """One level of the curriculum: numbers of notes, questions per prompt, shape of notes.

    The next one begins after `least` steps, once the accuracy on single notes is `enough`.
    `bare` is the share of prompts without the instruction: they begin with a note, so a note
    with nothing before it is nothing new to the model.
    """

    notes: tuple[int, int]
    questions: int
    shape: Shape
    enough: float = 1.0
    least: int = 40
    bare: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A part of the training with an optimiser of its own."""

    levels: tuple[Level, ...]
    steps: int
    peak: float = 1.0  # factor of the rates
    cooldown: float = 0.5  # share of the steps over which the rates fall to zero
    warmup: int = 50


def words(lo: int, hi: int, facts: tuple[int, int], base: Shape) -> Shape:
    """Notes of another length."""
    least, most = facts
    return replace(base, min_words=lo, max_words=hi, min_facts=least, max_facts=most)


FEW_MOVES = Shape(
    people=1, every=3, hands=4, seen=False, one=0.4, two=0.35, latest=0.25, holder=0.0
)
FIRST = replace(FEW_MOVES, one=0.7, two=0.15, latest=0.15)
EVEN = Shape(least_hands=2, one=0.25, two=0.25, latest=0.25, holder=0.25)

# The first phase learns to read, from two short notes to eight long ones; only the holders of an
# item mention it. From the second on, notes repeat who has it, so that the last one overwrites what
# several said before: with one note for each holder, a sum of states answers as well.
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


@dataclass(frozen=True)
class Recipe:
    tokens: int = 6144  # per batch, padding included
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    language: float = 0.1  # weight of the loss on words that are no answers
    earlier: float = 0.25  # share of batches from earlier levels


@dataclass(frozen=True)
class Share:
    """Which part of every batch a worker computes."""

    rank: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [B, n]
    targets: Tensor  # [B, n] the next words
    answers: Tensor  # [B, n] number of the question + 1 where the next word is its answer, else 0
    real: Tensor  # [B, n] the next word exists
    kinds: tuple[int, ...]  # of every question


def batch(seed: int, level: Level, tokens: int, share: Share = Share()) -> Batch:
    """One worker's prompts, of one number of notes, each with several questions and answers."""
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
    n = -(-max(map(len, rows)) // CHUNK) * CHUNK
    full = torch.zeros(size, n + 1, dtype=torch.long)
    mark = torch.zeros_like(full)
    real = torch.zeros(size, n + 1, dtype=torch.bool)
    for i, ids in enumerate(rows):
        full[i, : len(ids)] = torch.tensor(ids)
        mark[i, : len(ids)] = torch.tensor(marks[i])
        real[i, : len(ids)] = True
    return Batch(full[:, :n], full[:, 1:], mark[:, 1:], real[:, 1:], tuple(kinds))


def row(made: Prompt, first: int, bare: bool = False) -> tuple[list[int], list[int]]:
    """Token ids of a prompt with its questions and answers, and the marks of the answers."""
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
        self.moving = {s: torch.zeros(len(g), *s) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            grad = torch.stack([p.grad for p in group])
            moving = self.moving[shape].lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp(moving, self.momentum))
            scale = rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for p, u in zip(group, update, strict=True):
                p.add_(u, alpha=-scale)


def orthogonal(x: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: five steps of a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).bfloat16()
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y.mT if tall else y).float()


def loss_of(net: Model, b: Batch, language: float) -> tuple[Tensor, Tensor]:
    """The loss, and what to log: both losses, then the right and asked questions of each kind."""
    targets = b.targets
    hidden = net.hidden(b.ids)
    logits = net.logits(hidden).float().flatten(0, 1)
    each = F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
    answer = b.answers > 0
    other = b.real & ~answer
    asked, rest = each[answer].mean(), each[other].mean()
    with torch.no_grad():
        right = logits.argmax(-1).view_as(targets) == targets
        wrong = torch.zeros(len(b.kinds) + 1, dtype=torch.bool)
        wrong[b.answers[answer & ~right]] = True
        good = ~wrong[1:]
    kinds = F.one_hot(torch.tensor(b.kinds), len(KINDS)).float()
    counts = torch.cat([good.float() @ kinds, kinds.sum(0)])
    return asked + language * rest, torch.cat([torch.stack([asked, rest]).detach(), counts])


class Run:
    """Everything that a checkpoint holds."""

    def __init__(self, recipe: Recipe, share: Share):
        self.recipe = recipe
        self.share = share
        self.model = Model(Config(), torch.bfloat16)
        initialise(self.model, 0)
        self.seconds = 0.0
        self.begin(0)

    def begin(self, phase: int) -> None:
        """Starts a phase from the weights there are."""
        self.phase = phase
        matrices, others = [], []
        for name, p in self.model.named_parameters():
            big = p.dim() == 2 and min(p.shape) >= 64 and "embed" not in name
            (matrices if big else others).append(p)
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
        self.step, self.level, self.since = 0, 0, 0
        self.accuracy = dict.fromkeys(KINDS, 0.0)

    def advance(self) -> bool:
        """Begins the next phase when this one has ended; false when it was the last."""
        if self.step == PHASES[self.phase].steps:
            if self.phase + 1 == len(PHASES):
                return False
            self.begin(self.phase + 1)
        return True

    def rate(self) -> float:
        p = PHASES[self.phase]
        up = min(1.0, (self.step + 1) / p.warmup)
        return p.peak * min(up, (p.steps - self.step) / (p.steps * p.cooldown), 1.0)

    def train_step(self) -> dict[str, object]:
        r, p = self.recipe, PHASES[self.phase]
        level = self.level
        pick = torch.Generator().manual_seed(self.phase + self.step)
        if float(torch.rand((), generator=pick)) < r.earlier:
            level = int(torch.randint(0, level + 1, (), generator=pick))
        b = batch(self.phase * 10**7 + self.step, p.levels[level], r.tokens, self.share)
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
        asked = logged[2 + len(KINDS) :].tolist()
        right = [g / n if n else None for g, n in zip(logged[2:].tolist(), asked, strict=False)]
        stats = dict(zip(("answer", "language", *KINDS), logged[:2].tolist() + right, strict=True))
        if level == self.level:
            self.judge(stats)
        return stats | {"norm": float(norm), "size": list(b.ids.shape)}

    def averaged(self, logged: Tensor) -> Tensor:
        """Averages gradients and log over the workers, in one exchange."""
        if self.share.workers == 1:
            return logged
        grads = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.flatten() for g in grads] + [logged])
        distributed.all_reduce(flat)
        flat /= self.share.workers
        sizes = [g.numel() for g in grads] + [len(logged)]
        *parts, logged = flat.split(sizes)
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        return logged

    def judge(self, stats: dict) -> None:
        """Moves on to the next level when the accuracy on this one is good enough."""
        for kind in KINDS:
            if stats[kind] is not None:
                self.accuracy[kind] += 0.05 * (stats[kind] - self.accuracy[kind])
        levels = PHASES[self.phase].levels
        level = levels[self.level]
        done = self.accuracy["one"] > level.enough and self.since > level.least
        if done and self.level < len(levels) - 1:
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
        state = torch.load(path)
        self.begin(state["phase"])
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.moving = state["muon"]
        self.step, self.level, self.seconds, self.since, self.accuracy = state["rest"]


def write_model(net: Model, folder: Path) -> None:
    """A folder that transformers and vLLM load, with heads that vLLM has kernels for."""
    save(widened(net, ENGINE_WIDTH), folder)
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
    """Compiles what is not a matrix product; the same results up to rounding."""
    for cls, name in (
        (model.DeltaNet, "prepare"),
        (model.DeltaNet, "finish"),
        (model.Mlp, "forward"),
        (model.Norm, "forward"),
    ):
        setattr(cls, name, torch.compile(getattr(cls, name), dynamic=True))


def work(rank: int, args: argparse.Namespace) -> None:
    """One worker, with one thread: fewer joins than one process with several."""
    torch.set_num_threads(1)
    share = Share(rank, args.workers)
    if share.workers > 1:
        store = distributed.FileStore(str(args.work / "meeting"), share.workers)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=share.workers)
    fuse()
    given = {n: v for n, v in vars(args).items() if v is not None and n in OPTIONS}
    run = Run(replace(Recipe(), **given), share)
    checkpoint = args.work / "checkpoint.pt"
    if checkpoint.exists():
        run.restore(checkpoint)
    began = time.monotonic() - run.seconds
    with (args.work / "log.jsonl").open("a") if rank == 0 else nullcontext() as log:
        while run.advance():
            stats = run.train_step()
            run.seconds = time.monotonic() - began
            if log is None:
                continue
            at = {"phase": run.phase, "step": run.step, "level": run.level}
            log.write(json.dumps(at | {"seconds": round(run.seconds, 1)} | stats) + "\n")
            log.flush()
            if run.step % 100 == 0:
                run.store(checkpoint)
                write_model(run.model, args.work / "model")
    if rank == 0:
        write_model(run.model, args.out)


OPTIONS = ("tokens", "matrix_rate", "other_rate", "language")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--workers", type=int, default=2)
    for name in OPTIONS:
        kind = int if name == "tokens" else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "meeting").unlink(missing_ok=True)
    multiprocessing.spawn(work, (args,), args.workers)


if __name__ == "__main__":
    main()
