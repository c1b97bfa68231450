"""Starts vLLM in the process of a test with a tiny model, and other ones in processes of their own.

    python vllm_harness.py SETTINGS.json

answers the prompts of a settings file in a new process: a second engine on the same node, or the
reference without a connector. With "idle" in the file it says when it is ready, and waits for
requests that never come until its input ends: an engine as a server has it, in other processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spliced_connector.vllm.scheduler import SchedulerHalf
    from spliced_connector.vllm.worker import WorkerHalf

# Read by vLLM when it is imported. One thread that sleeps when it waits: a test shares its cores.
os.environ.update(
    VLLM_CPU_CI_ENV="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING=os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    TORCH_COMPILE_DISABLE=os.environ.get("TORCH_COMPILE_DISABLE", "1"),
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="PASSIVE",
    TOKENIZERS_PARALLELISM="false",
)

SOURCE = Path(__file__).resolve().parents[2] / "src"
CONNECTOR = "spliced_connector.vllm"
VOCABULARY = 512


@dataclass(frozen=True)
class Setup:
    """One engine. Without a socket it has no connector."""

    model: str
    socket: str = ""
    connector: dict[str, object] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What an engine said to one prompt."""

    tokens: list[int]
    logprobs: list[float]
    cached: int  # prompt tokens that were not computed
    told: dict[str, object] = field(default_factory=dict)  # by the connector


class Engine:
    """vLLM in this process: at most one at a time."""

    def __init__(self, setup: Setup) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.setup = setup
        options: dict[str, object] = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 2048,
            "enable_prefix_caching": True,
            "mamba_ssm_cache_dtype": "float32",  # the default depends on the processor
            "seed": 0,
        }
        if setup.socket:
            extra = {"socket": setup.socket, "weights": setup.model, "timeout_ms": 5000.0}
            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector="SplicedConnector",
                kv_connector_module_path=CONNECTOR,
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=extra | setup.connector,
            )
        self.llm = LLM(model=setup.model, **(options | setup.options))
        # An engine in processes of its own shows nothing of itself.
        self.core: Any = getattr(self.llm.llm_engine.engine_core, "engine_core", None)
        if setup.socket and self.core is not None:
            self._keep_prices()

    def _keep_prices(self) -> None:
        """Tell the daemon no prefill times: its prices are the settings of the test, whatever this
        machine does besides. With its own times a tiny model is not worth a checkpoint."""
        mode = self.scheduler._mode
        clock = getattr(mode, "clock", None) or getattr(mode, "_clock", None)
        if clock is not None:
            setattr(clock, "take", tuple)  # noqa: B010 mypy refuses the assignment

    @property
    def scheduler(self) -> SchedulerHalf:
        """The half of the connector that decides."""
        half: SchedulerHalf = self.core.scheduler.connector.scheduler_half
        return half

    @property
    def worker(self) -> WorkerHalf:
        """The half of the connector that moves bytes."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        half: WorkerHalf = get_kv_transfer_group().worker_half
        return half

    def wait_attached(self) -> None:
        """Both halves have found the daemon."""
        assert self.scheduler.wait_attached(10)
        assert self.worker.wait_attached(10)

    def ask(
        self,
        *prompts: Sequence[int],
        tokens: int = 6,
        cuts: Sequence[int] = (),
        **fields: object,
    ) -> list[Answer]:
        """Answer prompts in one batch, greedily. cuts: of all of them, none for requests that name
        no segments."""
        from vllm import SamplingParams

        said = {"kv_transfer_params": {"spliced": {"v": 1, "cuts": list(cuts)}}}
        sampling = SamplingParams(
            max_tokens=tokens,
            detokenize=False,
            temperature=0,
            ignore_eos=True,
            logprobs=0,
            extra_args=said if cuts else None,
        )
        given = [{"prompt_token_ids": list(prompt)} | fields for prompt in prompts]
        outputs = self.llm.generate(given, sampling, use_tqdm=False)
        answers = []
        for output in outputs:
            said = output.outputs[0]
            picked = zip(said.token_ids, said.logprobs, strict=True)
            logprobs = [row[token].logprob for token, row in picked]
            told = dict((output.kv_transfer_params or {}).get("spliced", {}))
            told.pop("decided_micros", None)  # another one each time
            cached = output.num_cached_tokens or 0
            answers.append(Answer(list(said.token_ids), logprobs, cached, told))
        return answers

    def settle(self) -> None:
        """Wait until everything is stored, and forget what the engine itself has cached."""
        assert all(self.llm.collective_rpc(_drained))
        assert self.llm.reset_prefix_cache()

    def counts(self) -> dict[str, int]:
        """What both halves of the connector have done."""
        return self.scheduler.tally.snapshot() | self.worker.tally.snapshot()

    def close(self) -> None:
        """End it, so that another can start."""
        import gc

        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.core
        cleanup_dist_env_and_memory()
        gc.collect()


def group(pid: int) -> int | None:
    """The process group of a process, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


class Idle:
    """An engine without requests in processes of its own, which are a group."""

    def __init__(self, setup: Setup, directory: Path) -> None:
        settings, self._log = directory / "idle.json", directory / "idle.log"
        settings.write_text(json.dumps({"setup": asdict(setup), "idle": True}))
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(settings)],
                env=os.environ | {"PYTHONPATH": str(SOURCE), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """The engine has started: some seconds."""
        if self._process.stdout is None:
            raise RuntimeError("no output")
        for line in self._process.stdout:
            if line.strip() == READY:
                return
        self.kill()
        raise RuntimeError(f"the engine does not start:\n{self._log.read_text()[-4000:]}")

    def pause(self) -> None:
        """Stall all of its processes."""
        from running import wait_stopped

        os.killpg(self._process.pid, signal.SIGSTOP)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        wait_stopped(pid for pid in pids if group(pid) == self._process.pid)

    def kill(self) -> None:
        """End it with SIGKILL. Twice is once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()


READY = "the engine is ready"


def _drained(_worker: object) -> bool:
    """In the process of each rank."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return bool(get_kv_transfer_group().worker_half.drain(30))


def trained(model: Any) -> None:
    """Writes other weights as loaders do. On a CPU products use packed copies of wide ones."""
    import torch

    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.copy_(torch.linspace(0.2, 1.8, weight.numel()).flip(0))


def elsewhere(
    setup: Setup,
    prompts: Sequence[Sequence[int]],
    directory: Path,
    cuts: Sequence[Sequence[int]] = (),
    **environment: str,
) -> list[Answer]:
    """The answers of an engine in a process of its own, which ends before this returns.

    cuts: parallel to the prompts, empty for those that name none; or none at all.
    """
    settings = directory / "engine.json"
    given = {
        "setup": asdict(setup),
        "prompts": [list(p) for p in prompts],
        "cuts": [list(c) for c in cuts or [()] * len(prompts)],
    }
    settings.write_text(json.dumps(given))
    run = subprocess.run(
        [sys.executable, __file__, str(settings)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if run.returncode:
        raise RuntimeError(f"the engine ended with {run.returncode}:\n{run.stderr[-4000:]}")
    rows = json.loads(run.stdout.strip().splitlines()[-1])
    return [Answer(**row) for row in rows]


def main() -> None:
    """Answer the prompts of a settings file, one after another, and print JSON."""
    from spliced_connector.vllm import plugin

    given = json.loads(Path(sys.argv[1]).read_text())
    plugin.register()  # as its entry point does, also in the processes of ranks
    engine = Engine(Setup(**given["setup"]))
    if given.get("idle"):
        print(READY, flush=True)
        sys.stdin.read()
        engine.llm.llm_engine.engine_core.shutdown()
        return
    answers = []
    for one, cuts in zip(given["prompts"], given["cuts"], strict=True):
        answers += engine.ask(one, cuts=cuts)
        if given["setup"]["socket"]:
            engine.settle()
    engine.close()
    print(json.dumps([asdict(answer) for answer in answers]))


def prompt(tokens: int, seed: int, prefix: Sequence[int] = ()) -> list[int]:
    """Token ids that no other seed has, behind a prefix."""
    state, out = seed * 2654435761 % 2**32, list(prefix)
    while len(out) < tokens:
        state = (state * 1664525 + 1013904223) % 2**32
        out.append((state >> 16) % VOCABULARY)
    return out


def hybrid_model(directory: Path, heads: int = 1) -> str:
    """Three gated delta layers and one of attention, as Qwen3.5 has them; weights by seed.

    heads: of keys, so many as ranks may share the model.
    """
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        num_attention_heads=2 * heads,
        num_key_value_heads=heads,
        head_dim=64,
        linear_num_key_heads=heads,
        linear_num_value_heads=2 * heads,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(1)
    return _written(Qwen3_5ForCausalLM(config).float(), directory)


def dense_model(directory: Path) -> str:
    """Two layers of attention, as Qwen2 has them; weights by seed."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(2)
    return _written(Qwen2ForCausalLM(config).float(), directory)


def mtp_model(directory: Path) -> str:
    """`hybrid_model` with a layer that drafts: a copy of its layer of attention."""
    import torch
    from safetensors.torch import load_file, save_file

    model = Path(hybrid_model(directory))
    weights = load_file(model / "model.safetensors")
    norm = weights["model.norm.weight"]
    more = {f"mtp.{name}.weight": norm.clone() for name in _MTP_NORMS}
    more["mtp.fc.weight"] = torch.cat([torch.eye(len(norm))] * 2, 1) / 2
    for name, weight in weights.items():
        if (inner := name.removeprefix("model.layers.3.")) != name:
            more[f"mtp.layers.0.{inner}"] = weight.clone()
    save_file(weights | more, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    (model / "config.json").write_text(json.dumps(config))
    return str(model)


_MTP_NORMS = ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")


def _written(model: PreTrainedModel, directory: Path) -> str:
    """Weights wide enough that answers depend on all tokens, in a directory."""
    import torch

    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(directory)
    return str(directory)


if __name__ == "__main__":
    main()
