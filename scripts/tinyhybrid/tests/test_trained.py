"""The committed models: what they are made of, and that they answer."""

import hashlib
import json
from pathlib import Path

import pytest

from generate import HELD_OUT, Corpus
from lexicon import encode, tokenizer_json

HERE = Path(__file__).parent.parent
MODEL = HERE / "model"
MODELS = [MODEL, HERE / "long"]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_tokenizer_is_the_one_of_the_words(model: Path) -> None:
    assert json.loads((model / "tokenizer.json").read_text()) == json.loads(tokenizer_json())


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_weights_are_small_and_those_of_the_card(model: Path) -> None:
    weights = (model / "model.safetensors").read_bytes()
    assert len(weights) <= 8 << 20
    assert hashlib.sha256(weights).hexdigest() in (model / "README.md").read_text()


def test_the_questions_are_those_of_the_corpus() -> None:
    lines = (HERE / "questions.jsonl").read_text().splitlines()
    corpus = Corpus(HELD_OUT, 128)
    assert len(lines) == 100
    for line in lines:
        record = json.loads(line)
        made = corpus.prompt(record["seed"], len(record["segments"]) - 2)
        assert record == {"seed": record["seed"], **made.record()}


@pytest.mark.engine
def test_it_answers_held_out_questions() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import evaluate

    torch.set_num_threads(1)
    net = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    right, asked = evaluate.accuracy(net, 15, [2, 4])["all"]["all"]
    assert asked == 30
    assert right >= 24


@pytest.mark.engine
def test_the_tokenizer_loads_and_cuts_do_not_matter() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    segments = Corpus(HELD_OUT, 128).prompt(HELD_OUT, 3).segments()
    apart = [i for s in segments for i in tokenizer(s)["input_ids"]]
    assert apart == tokenizer(" ".join(segments))["input_ids"] == encode(" ".join(segments))
