"""Runs SGLang as it is released, on a CPU, for tests.

    python sglang_harness.py OPTIONS.json

is one engine: SGLang's own processes, with the connector's plugin and that of `sglang_kernels` as
pip would install them. It reads requests as lines of JSON, {"id", "ids", "sampling"}, and answers
each with a line when it has ended; {"abort": id} ends one early, {"flush": id} empties the engine's
own prefix cache. The end of its input ends it.

The engine checks its pools after every batch and when it is idle: a slot that is lost ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from running import Daemon

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
MODEL = HERE.parents[3] / "scripts" / "tinyhybrid" / "model"

OPTIONS: dict[str, object] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "mamba_radix_cache_strategy": "no_buffer",
    "disable_overlap_schedule": True,
    "attention_backend": "torch_native",
    "max_total_tokens": 16384,
    "max_running_requests": 8,
    "max_mamba_cache_size": 48,
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.2,
    "log_level": "warning",
    "watchdog_timeout": 600,
    "sleep_on_idle": True,
}
"""What a CPU without SGLang's own kernels wants."""

SETTINGS: dict[str, object] = {"timeout_ms": 2000}
"""Of the connector: a busy machine may hold a daemon up for long, and tests say what is reused."""

PLUGINS = {
    "sglang-kernels": "kernels = sglang_kernels:replace",
    "spliced-connector": "spliced = spliced_connector.sglang.plugin:register",
}

SEAM = 8
"""Tokens on each side of a join that are computed again, where nothing else is set."""

_START_SECONDS = 400
_ANSWER_SECONDS = 120


def environment(directory: Path, settings: dict[str, object] | None) -> dict[str, str]:
    """Of an engine's processes. settings: the connector's; None: it is not installed."""
    site = directory / ("site" if settings is not None else "plain")
    for name, entry in PLUGINS.items():
        if settings is None and name == "spliced-connector":
            continue
        info = site / f"{name.replace('-', '_')}-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n")
    paths = [str(site), str(HERE), str(SOURCE)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRITON_INTERPRET": "1",  # for the kernels that are not replaced
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SPLICED_SGLANG": json.dumps({**SETTINGS, **(settings or {})}),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }


@dataclass(frozen=True)
class Answer:
    """What an engine said to one prompt."""

    tokens: list[int]
    cached: int  # prompt tokens that were not computed
    told: dict[str, Any] = field(default_factory=dict)  # by the connector
    logprobs: list[float] = field(default_factory=list)  # of the tokens
    finish: str = ""
    retractions: int = 0  # times that it gave way to others

    @property
    def prefix(self) -> int:
        """Tokens of a prefix that it began behind, exact or of a splice."""
        told = self.told
        return int(told["tokens"] if told.get("way") == "prefix" else told.get("prefix", 0))

    def whole(self, cuts: Sequence[int]) -> bool:
        """Whether it is a splice of all segments between its cuts, and none was captured. One that
        is just being published is neither there nor captured: it is computed in its context. The
        first may be a prefix."""
        told = self.told
        return (
            told.get("way") == "splice"
            and told["captured"] == 0
            and self.prefix <= cuts[1]
            and told["tokens"] == cuts[-1] - SEAM
            and told["walked"] <= cuts[0] + 2 * SEAM * (len(cuts) - 1)
        )


class Engine:
    """SGLang in processes of its own. Without settings it has no connector."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        model: Path = MODEL,
        environ: dict[str, str] | None = None,
        **options: object,
    ) -> None:
        self.model = model
        given: dict[str, object] = {"model_path": str(model), **OPTIONS, **options}
        if settings is not None:
            given["radix_cache_backend"] = "spliced"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "options.json"
        path.write_text(json.dumps(given))
        self.log = directory / "engine.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "sglang_harness.py"), str(path)],
                env=environment(directory, settings) | (environ or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._answers: dict[int, Any] = {}
        self._change = threading.Condition()
        self._next = 0
        self.ready = False
        threading.Thread(target=self._read, daemon=True).start()
        with self._change:
            if not self._change.wait_for(lambda: self.ready or self.ended, _START_SECONDS):
                raise TimeoutError("SGLang did not start")
        if not self.ready:
            raise RuntimeError(f"SGLang ended: {self.tail()}")

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def tail(self) -> str:
        """The end of what it has logged."""
        return self.log.read_text(errors="replace")[-3000:]

    def begin(
        self,
        ids: Sequence[int],
        cuts: Sequence[int] | None = None,
        tokens: int = 8,
        said: dict[str, object] | None = None,
        **sampling: object,
    ) -> int:
        """Asks; `take` waits for the answer. said: what it says of its segments, cuts among it."""
        params: dict[str, object] = {"temperature": 0, "max_new_tokens": tokens, **sampling}
        if cuts is not None or said is not None:
            spliced = {"v": 1, **(said or {}), **({"cuts": list(cuts)} if cuts else {})}
            params["custom_params"] = {"spliced": spliced}
        return self._send({"ids": list(ids), "sampling": params})

    def take(self, number: int) -> Answer:
        """The answer to a request that was begun."""
        with self._change:
            found = self._change.wait_for(
                lambda: number in self._answers or self.ended, _ANSWER_SECONDS
            )
            if not found or number not in self._answers:
                raise RuntimeError(f"no answer: {self.tail()}")
            reply = self._answers.pop(number)
        meta = reply.get("meta_info", {})
        logprobs = [x[0] for x in meta.get("output_token_logprobs", ())]
        told = meta.get("spliced") or [{}]
        finish = str((meta.get("finish_reason") or {}).get("type", ""))
        return Answer(
            list(reply.get("output_ids", ())),
            int(meta.get("cached_tokens", 0)),
            told[0],
            logprobs,
            finish,
            int(meta.get("num_retractions") or 0),
        )

    def ask(self, ids: Sequence[int], *args: Any, **kwargs: Any) -> Answer:
        """`begin` and `take`."""
        return self.take(self.begin(ids, *args, **kwargs))

    def abort(self, number: int) -> None:
        """Ends a request early; it still has an answer."""
        self._write({"abort": number})

    def spliced(
        self, daemon: Daemon, ids: Sequence[int], cuts: Sequence[int], tokens: int = 8
    ) -> Answer:
        """The first answer that is a splice of all segments, each of them held.

        The daemon wants segments when it sees them again, and publishing goes on after an answer:
        so the prompt is repeated. Its prefix is removed each time, here and in the daemon, because
        nothing is spliced within a prefix.
        """
        answers: list[dict[str, Any]] = []
        end = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = self.ask(ids, cuts, tokens, logprobs=True)
            if answer.whole(cuts):
                return answer
            answers.append(answer.told)
            assert time.monotonic() < end, f"no splice of all segments: {answers[-3:]}"
            time.sleep(0.05)
            self.flush()
            daemon.forget_checkpoints()

    def load(self, model: Path) -> bool:
        """Loads other weights while it runs, as trainers do. Returns whether it has."""
        return self.take(self._send({"load": str(model)})).finish == "True"

    def flush(self) -> None:
        """Empties its own prefix cache, once no request runs."""
        end = time.monotonic() + _ANSWER_SECONDS
        while True:
            if self.take(self._send({"flush": True})).finish == "True":
                return
            assert time.monotonic() < end, "its cache is not flushed"
            time.sleep(0.02)

    def close(self) -> None:
        """Ends it, and waits until it has."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def _send(self, line: dict[str, object]) -> int:
        """Sends a line under a number of its own."""
        number = self._next
        self._next += 1
        self._write({"id": number, **line})
        return number

    def _write(self, line: dict[str, object]) -> None:
        if self._process.stdin is None:
            raise RuntimeError("no input")
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if not line.startswith('{"harness"'):
                continue  # a library's own words
            told = json.loads(line)["harness"]
            with self._change:
                if told == "ready":
                    self.ready = True
                else:
                    self._answers[told["id"]] = told["reply"]
                self._change.notify_all()
        with self._change:
            self._process.wait()
            self._change.notify_all()


async def serve(options: dict[str, Any]) -> None:
    """Answers until its input ends."""
    import sglang

    engine = sglang.Engine(**options)
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    def say(told: object) -> None:
        print(json.dumps({"harness": told}), flush=True)

    async def answer(number: int, ids: list[int], sampling: dict[str, Any]) -> None:
        logprob = bool(sampling.pop("logprobs", False))
        try:
            reply = await engine.async_generate(
                input_ids=ids, sampling_params=sampling, return_logprob=logprob, rid=f"r{number}"
            )
        except Exception as err:
            reply = {"meta_info": {"finish_reason": {"type": f"error: {err}"}}}
        say({"id": number, "reply": reply})

    def done(number: int, what: bool) -> None:
        say({"id": number, "reply": {"meta_info": {"finish_reason": {"type": str(what)}}}})

    async def load(number: int, path: str) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(model_path=path)
        loaded, *_ = await engine.tokenizer_manager.update_weights_from_disk(request)
        done(number, loaded)

    async def flush(number: int) -> None:
        done(number, (await engine.tokenizer_manager.flush_cache()).success)

    threading.Thread(target=read, daemon=True).start()
    say("ready")
    running: set[asyncio.Task[None]] = set()
    while line := await lines.get():
        told = json.loads(line)
        if "abort" in told:
            engine.tokenizer_manager.abort_request(rid=f"r{told['abort']}")
            continue
        if "load" in told:
            await load(told["id"], told["load"])
            continue
        if "flush" in told:
            await flush(told["id"])
            continue
        task = asyncio.create_task(answer(told["id"], told["ids"], told["sampling"]))
        running.add(task)
        task.add_done_callback(running.discard)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
