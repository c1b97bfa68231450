"""Compares next-turn logits of vLLM after a decoded answer with those after a prefill.

    cd connector/python && PYTHONPATH=src:tests ../../bin/engines/bin/python \\
        bench/vllm_states.py --models long,qwen3_5,mamba2,bailing_2.5 --states bfloat16,float32

It starts engines of vLLM on a CPU, one after another. Each answer ends at the end of a block, where
the next turn continues. The next turn's log-probabilities are compared with those after a prefill
of the same tokens ("decoded"). A prefill that was cut at every block is compared with that prefill
as well ("split"). The printed values are the root mean squares of the differences, in units of the
spread of the log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine import vllm_kernels
from engine.vllm_harness import Engine, Setup, hybrid_model, prompt
from engine.vllm_models import TINY

ROOT = Path(__file__).resolve().parents[3]
TRAINED = {name: ROOT / "scripts/tinyhybrid" / name for name in ("model", "long")}
PROMPTS, TAILS, TAIL = 4, 4, 24


def keep_asked_type(asked: str) -> None:
    """Makes vLLM keep the requested type of states. On processors with bfloat16 it would set the
    states of layers other than GDN to float32."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def checked(_: type, config: Any) -> None:
        check(config)
        config.cache_config.mamba_ssm_cache_dtype = asked
        config.cache_config.mamba_cache_dtype = "float32" if asked == "float32" else "auto"

    CpuPlatform.check_and_update_config = classmethod(checked)


def start(name: str, states: str, directory: Path) -> Engine:
    options: dict[str, object] = {
        "max_logprobs": -1,
        "mamba_ssm_cache_dtype": states,
        "prefix_cache_retention_interval": None,  # states of answers are cached too
    }
    if name in TRAINED:
        return Engine(Setup(str(TRAINED[name]), options=options))
    if name == "qwen3_5":
        return Engine(Setup(hybrid_model(directory), options=options))
    vllm_kernels.replace()
    keep_asked_type(states)
    family = name.removesuffix("_slow")
    tiny = TINY[family]
    if name != family:
        from dataclasses import replace

        tiny = replace(tiny, steps=-8.0)  # type: ignore[arg-type]
    options |= {k: v for k, v in tiny.options.items() if k != "dtype"}
    return Engine(Setup(tiny.save(directory), options=options))


def said(name: str, tokens: int, seed: int) -> list[int]:
    """Returns a prompt: held-out notes of a trained model, or random tokens."""
    if name not in TRAINED:
        return prompt(tokens, seed=seed)
    sys.path.insert(0, str(ROOT / "scripts/tinyhybrid"))
    generate, lexicon = import_module("generate"), import_module("lexicon")

    first, shape = generate.HELD_OUT + 7000 + seed * 97, generate.shape_of(TRAINED[name])
    out: list[int] = []
    while len(out) < tokens:
        made = generate.prompt(first + len(out), 4, shape)
        out += [i for text in made.segments() for i in lexicon.encode(text)]
    return out[:tokens]


def ask(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, salts: Sequence[str]) -> Any:
    """Returns sampled answers, in one batch."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, detokenize=False, temperature=1.0, ignore_eos=True)
    given = [
        {"prompt_token_ids": list(ids), "cache_salt": salt}
        for ids, salt in zip(prompts, salts, strict=True)
    ]
    return engine.llm.generate(given, sampling, use_tqdm=False)


def logits(
    engine: Engine, prompts: Sequence[Sequence[int]], salt: str, cached: int
) -> list[Tensor]:
    """Returns the next tokens' log-probabilities. The first `cached` tokens must be cached."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=1, detokenize=False, temperature=0, logprobs=-1)
    given = [{"prompt_token_ids": list(ids), "cache_salt": salt} for ids in prompts]
    out = []
    for output in engine.llm.generate(given, sampling, use_tqdm=False):
        if (output.num_cached_tokens or 0) != cached:
            raise RuntimeError(f"{salt}: {output.num_cached_tokens} tokens cached, want {cached}")
        row = output.outputs[0].logprobs[0]
        out.append(torch.tensor([row[i].logprob for i in sorted(row)], dtype=torch.float64))
    return out


def distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    spread = float(b.std())
    difference = (a - a.mean()) - (b - b.mean())
    kl = float((b.exp() * (b - a)).sum())
    return float(difference.square().mean().sqrt()) / spread, kl


def block_of(engine: Engine) -> int:
    return int(engine.core.scheduler.cache_config.block_size)


def measure(engine: Engine, name: str, answers: Sequence[int]) -> dict[int, dict[str, Any]]:
    block, out = block_of(engine), dict[int, dict[str, Any]]()
    for n in answers:
        rows: dict[str, list[tuple[float, float]]] = {"decoded": [], "split": []}
        flips = {"decoded": 0, "split": 0}
        end = max(-(-(n + 100) // block) * block, 2 * block)
        said_first = [said(name, end - n, 100 * n + one) for one in range(PROMPTS)]
        salts = [f"{n} {one}" for one in range(PROMPTS)]
        found = ask(engine, said_first, n + 2, [f"{salt} decoded" for salt in salts])
        for ids, answer, salt in zip(said_first, found, salts, strict=True):
            history = ids + list(answer.outputs[0].token_ids)[:n]
            for at in range(block, end + 1, block):  # a prefill that is cut at each block
                ask(engine, [[*history[:at], 5]], 1, [f"{salt} split"])
            ask(engine, [[*history, 5]], 1, [f"{salt} whole"])  # and one without cuts
            tails = [history + said(name, TAIL, 9000 + tail) for tail in range(TAILS)]
            whole = logits(engine, tails, f"{salt} whole", end)
            for way in rows:
                for got, want in zip(
                    logits(engine, tails, f"{salt} {way}", end), whole, strict=True
                ):
                    rows[way].append(distance(got, want))
                    flips[way] += int(got.argmax() != want.argmax())
        out[n] = {
            way: {
                "rms": math.sqrt(sum(d * d for d, _ in found) / len(found)),
                "most": max(d for d, _ in found),
                "kl": sum(kl for _, kl in found) / len(found),
                "flips": flips[way],
                "of": len(found),
            }
            for way, found in rows.items()
        }
        print(name, n, json.dumps(out[n]), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="States of decoding and of a prefill, in vLLM.")
    parser.add_argument("--models", default="long,model,qwen3_5,mamba2,bailing_2.5")
    parser.add_argument("--states", default="bfloat16,float32")
    parser.add_argument("--answers", default="16,64,256,600", help="their tokens")
    parser.add_argument("--one", action="store_true", help="in this process")
    given = parser.parse_args()
    if not given.one:  # an engine leaves much allocated, so each has its own process
        for model in given.models.split(","):
            for states in given.states.split(","):
                command = [sys.executable, __file__, "--one", f"--models={model}"]
                command += [f"--states={states}", f"--answers={given.answers}"]
                subprocess.run(command, check=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        engine = start(given.models, given.states, Path(directory) / "model")
        caches = engine.core.scheduler.kv_cache_config.kv_cache_groups
        kept = {str(d) for g in caches for d in getattr(g.kv_cache_spec, "dtypes", ())}
        print(given.models, "states of", given.states, sorted(kept), flush=True)
        measure(engine, given.models, [int(n) for n in given.answers.split(",")])
        engine.close()


if __name__ == "__main__":
    main()
