"""Counts the blocks that vLLM's own block manager has in use, with copies and with shared pages.

    bin/engines/bin/python connector/python/bench/vllm_pages.py    # in the repository's root

The first table has the tokens of an attention block, and how many segments are at least as long. In
hybrids vLLM enlarges an attention block until it is as large as a recurrent state. The second table
is about 300 requests, each with 11 of 240 paragraphs of XQuAD, and a fixed number of requests in
flight. It has the peak number of attention blocks, with copies and with shared pages. Its last
columns include the blocks of states. Each request has three blocks of states, as in Qwen3-Next. No
engine runs and no tensor exists: a block is only a number here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "connector/python/src"))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.v1.attention.backend import MultipleOf  # noqa: E402
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import RequestStatus  # noqa: E402

from spliced_connector.vllm.pages.manager import SharedPagesSpec, find_manager  # noqa: E402
from spliced_connector.vllm.pages.plans import Wanted, parts_of  # noqa: E402

CONFIGS = ROOT / "policy/profile/testdata/config"
LISTS = ROOT / "scripts/lab/pages/xquad"

MODELS = {
    "qwen3-next-80b-a3b": "Qwen3NextForCausalLM",
    "qwen3.5-35b-a3b": "Qwen3_5MoeForCausalLM",
    "olmo-hybrid-7b": "OlmoHybridForCausalLM",
    "granite-4.0-h-small": "GraniteMoeHybridForCausalLM",
    "nemotron-h-8b": "NemotronHForCausalLM",
    "falcon-h1-0.5b": "FalconH1ForCausalLM",
    "jamba-1.5-mini": "JambaForCausalLM",
    "zamba2-2.7b": "Zamba2ForCausalLM",
}
SEAM = 8
SYSTEM, OUTPUT = 48, 32
STATES = 3
POOL = 1 << 16


class Small(CPUAttentionBackend):  # type: ignore[misc]
    """A backend whose kernel requires blocks of 16 tokens, as kernels of GPUs do."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: object = None) -> list[object]:
        return [MultipleOf(16)]


def block_tokens(model: str, architecture: str, backend: type, least: int) -> int:
    """Returns the tokens of an attention block, by vLLM's own function. least: the tokens of a
    block in a model without recurrent layers."""
    described = json.loads((CONFIGS / f"{model}.json").read_text())
    described = described.get("text_config", described)
    described |= {"architectures": [architecture], "dtype": "bfloat16"}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(described))
        config = EngineArgs(
            model=directory, skip_tokenizer_init=True, dtype="bfloat16", load_format="dummy"
        ).create_engine_config()
        config.cache_config.block_size = least
        with set_current_vllm_config(config):
            platform = type(current_platform)
            # vLLM would ask the layers for their backends, but no layer is built.
            platform._find_non_ssm_backends = classmethod(lambda cls, _: [backend])
            platform._align_hybrid_block_size(config, backend)
        return int(config.cache_config.block_size)


def numbers(name: str) -> Iterator[list[int]]:
    for line in (LISTS / name).read_text().splitlines():
        if line and not line.startswith("#"):
            yield [int(number) for number in line.split()]


class Pool:
    """vLLM's manager of blocks over three groups of states and one of attention."""

    def __init__(self, block: int) -> None:
        attention = FullAttentionSpec(
            block_size=block, num_kv_heads=2, head_size=256, dtype=torch.bfloat16
        )
        states = MambaSpec(
            block_size=1 << 20,
            shapes=((1, 1),),
            dtypes=(torch.float32,),
            page_size_padded=attention.page_size_bytes,
        )
        groups = [KVCacheGroupSpec([f"states {i}"], states) for i in range(STATES)]
        groups.append(KVCacheGroupSpec(["attention"], SharedPagesSpec.of(attention)))
        self.manager = KVCacheManager(
            KVCacheConfig(POOL, [], groups),
            max_model_len=1 << 17,
            scheduler_block_size=block << 20,
            hash_block_size=block << 20,
            enable_caching=False,
        )
        pages = find_manager(self.manager)
        if pages is None:
            raise RuntimeError("the manager is not ours")
        self.pages = pages

    @property
    def used(self) -> int:
        return POOL - 1 - int(self.manager.block_pool.get_num_free_blocks())

    def admit(
        self, name: str, question: int, lengths: Sequence[tuple[int, int]], share: bool
    ) -> Any:
        """Admits a request and allocates its blocks up to the end of its answer. lengths: number
        and tokens of each of its paragraphs, which follow a system prompt."""
        at, wanted = SYSTEM, list[Wanted]()
        for i, (paragraph, length) in enumerate(lengths):
            interior = length - 2 * SEAM
            if interior > 0 and share:
                key, most = str(paragraph).encode(), self.pages.bins.part_tokens
                wanted += parts_of(key, at + SEAM, interior, at, i, most)
            at += length
        filled, total = at - SEAM, at + question + OUTPUT
        request = SimpleNamespace(
            request_id=name,
            num_tokens=total - OUTPUT,
            num_prompt_tokens=total - OUTPUT,
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            status=RequestStatus.WAITING,
            shared_prefix_boundary=0,
        )
        self.pages.offer(name, tuple(wanted))
        slots = self.manager.allocate_slots
        there = slots(request, 0, num_external_computed_tokens=filled, delay_cache_blocks=True)
        request.num_computed_tokens, request.status = filled, RequestStatus.RUNNING
        request.num_tokens = total
        if there is None or slots(request, total - filled) is None:
            raise RuntimeError("the pool is too small")
        return request


def peaks(block: int, at_once: int, name: str, share: bool) -> tuple[int, int]:
    """Returns the peak numbers of blocks in use: of attention alone, and including states."""
    paragraphs = [row[0] for row in numbers("lengths.txt")]
    pool, running = Pool(block), deque[Any]()
    attention = every = 0
    for i, (question, *picked) in enumerate(numbers(name)):
        if len(running) == at_once:
            pool.manager.free(running.popleft())
        lengths = [(p, paragraphs[p]) for p in picked]
        running.append(pool.admit(str(i), question, lengths, share))
        every = max(every, pool.used)
        attention = max(attention, pool.used - STATES * len(running))
    return attention, every


def main() -> None:
    lengths = sorted(row[0] for row in numbers("lengths.txt"))
    print("| model | CPU | GPU | paragraphs of XQuAD as long as a block (GPU) |\n|---|---|---|---|")
    for model, architecture in MODELS.items():
        cpu = block_tokens(model, architecture, CPUAttentionBackend, 128)
        gpu = block_tokens(model, architecture, Small, 16)
        longer = len(lengths) - bisect_left(lengths, gpu)
        print(f"| {model} | {cpu:,} | {gpu:,} | {longer} of {len(lengths)} |")
    print("\n| block | at once | copies | shared | ratio | with states: copies | shared | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for block in (128, 256, 544, 1056):
        for at_once in (25, 75, 300):
            copied = peaks(block, at_once, "uniform.txt", share=False)
            shared = peaks(block, at_once, "uniform.txt", share=True)
            row: list[int | str] = [block, at_once]
            for a, b in zip(copied, shared, strict=True):
                row += [a, b, f"{a / b:.2f}"]
            print("| " + " | ".join(f"{x:,}" if isinstance(x, int) else x for x in row) + " |")


if __name__ == "__main__":
    main()
