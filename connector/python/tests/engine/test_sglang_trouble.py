"""SGLang under pressure, and settings other than the usual ones; see `test_sglang_splice`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import pytest
import torch

if not find_spec("sglang") or not find_spec("triton"):
    pytest.skip("SGLang is not installed: `make test-sglang`", allow_module_level=True)

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from engine.sglang_harness import MODEL, Answer, Engine
from engine.test_sglang_splice import NEAR, alone, draw, until
from running import Daemon
from spliced_connector.client import Client, Options
from spliced_connector.hf import SplicedTransformers
from spliced_connector.model import weights_digest
from spliced_connector.walk import Naming


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(
        tmp_path_factory.mktemp("d"), "-arena=256MiB", "-private=256MiB", "-prefill-speed=5"
    )
    running.start()
    yield running
    running.stop()


def settings(daemon: Daemon, **more: object) -> dict[str, object]:
    base = {"socket": daemon.socket, "mode": "splice", "measured": False, "canary_share": 0.0}
    return base | more


@pytest.fixture(scope="module")
def pressed(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Little memory, short chunks, short slices; running requests give way every few steps."""
    running = Engine(
        tmp_path_factory.mktemp("e"),
        settings(daemon, stall_ms=5.0),
        environ={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"},
        max_total_tokens=4096,
        max_mamba_cache_size=14,
        chunked_prefill_size=128,
    )
    yield running
    running.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of attention only, with random weights."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=640,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3) if weight.dim() > 1 else None
    directory = tmp_path_factory.mktemp("llama")
    model.to(torch.bfloat16).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, directory)
    return directory


def told(answers: Sequence[Answer], name: str) -> int:
    return sum(int(answer.told.get(name, 0)) for answer in answers)


def test_requests_that_give_way_come_back_spliced(pressed: Engine, daemon: Daemon) -> None:
    """The engine checks its pools after every batch."""
    parts = [draw(430 + i, 220) for i in range(4)]
    cuts = [0, 220, 440, 660]
    prompts = [
        [*(token for i in order for token in parts[i]), *draw(440 + number, 10)]
        for number, order in enumerate(list(permutations(range(4), 3))[:8])
    ]
    first = [pressed.spliced(daemon, ids, cuts) for ids in prompts]
    asked = [pressed.begin(ids, cuts, 24, ignore_eos=True) for ids in prompts]
    answers = [pressed.take(number) for number in asked]
    assert sum(answer.retractions for answer in answers) > 0
    for answer, before in zip(answers, first, strict=True):
        assert len(answer.tokens) == 24
        assert answer.tokens[0] == before.tokens[0]
        assert answer.told["way"] == "splice"
    assert not pressed.ended


def test_exact_requests_give_way_too(pressed: Engine) -> None:
    model = AutoModelForCausalLM.from_pretrained(pressed.model, dtype=torch.bfloat16).eval()
    prompts = [draw(400 + i, 300) for i in range(6)]
    asked = [pressed.begin(ids, tokens=20, ignore_eos=True) for ids in prompts]
    answers = [pressed.take(number) for number in asked]
    assert sum(answer.retractions for answer in answers) > 0
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer.tokens[:6] == alone(model, ids, 6)
    assert told(answers, "stored") > 0


def test_ends_beside_others(pressed: Engine) -> None:
    asked = [
        pressed.begin([*draw(500 + i, 300), *draw(520 + i, 300), 7, 8], [0, 300, 600], 60)
        for i in range(6)
    ]
    for number in asked[::2]:
        time.sleep(0.05)
        pressed.abort(number)
    for number in asked:
        pressed.take(number)
    time.sleep(1.0)  # idle: where it checks
    assert pressed.ask(draw(540, 200)).tokens
    assert not pressed.ended


@pytest.mark.parametrize("page", [1, 16])
def test_attention_alone_in_pages_and_overlapped(
    daemon: Daemon, llama: Path, tmp_path: Path, page: int
) -> None:
    """Without recurrent states SGLang plans a batch while another runs."""
    engine = Engine(
        tmp_path, settings(daemon), llama, disable_overlap_schedule=False, page_size=page
    )
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).eval()
    client = Client(Options(socket=daemon.socket, name="test"))
    assert client.wait_attached(5.0)
    library = SplicedTransformers(model, client, Naming(weights_digest(llama)))
    try:
        ids, cuts = [*draw(600, 200), *draw(601, 200), *draw(602, 30)], [0, 200, 400]
        answer = engine.spliced(daemon, ids, cuts, 4)
        assert answer.cached == int(answer.told["tokens"]) // page * page
        want = torch.log_softmax(library.prefill(ids, cuts, mode="splice").logits.float(), -1)
        assert abs(float(want[answer.tokens[0]]) - answer.logprobs[0]) < NEAR
        exact = draw(603, 300)
        first = engine.ask(exact, logprobs=True)
        want = torch.log_softmax(library.prefill(exact).logits.float(), -1)
        assert abs(float(want[first.tokens[0]]) - first.logprobs[0]) < NEAR
        asked = [engine.begin(draw(610 + i, 150), tokens=20) for i in range(4)]
        asked += [engine.begin(ids, cuts, 20) for _ in range(3)]
        assert all(engine.take(number).tokens for number in asked)
        time.sleep(1.0)
        assert not engine.ended
    finally:
        client.close()
        engine.close()


def test_the_canary_compares_and_switches_off(daemon: Daemon, tmp_path: Path) -> None:
    engine = Engine(tmp_path, settings(daemon, canary_share=1.0, canary_bound=1e-6))
    ids, cuts = [*draw(700, 200), *draw(701, 200), 5, 6, 7], [0, 200, 400]

    def switched_off() -> bool:
        engine.flush()
        return engine.ask(ids, cuts).told.get("trouble") == "splicing is switched off"

    try:
        until(switched_off)
        assert "splicing is off" in engine.log.read_text()
    finally:
        engine.close()


def test_what_it_does_not_know_is_told_at_the_start(daemon: Daemon, tmp_path: Path) -> None:
    """An engine that is not known serves without."""
    engine = Engine(tmp_path, settings(daemon), kv_cache_dtype="fp8_e4m3")
    try:
        assert engine.ask(draw(800, 100)).told == {}
        assert "a cache of fp8_e4m3 is not supported" in engine.log.read_text()
    finally:
        engine.close()
