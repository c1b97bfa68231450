"""Timed runs: levels and rates follow the time, batches come in order, a GPU is not waited for."""

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

import model  # noqa: E402
import train  # noqa: E402
from generate import KINDS, LONG, Shape, shape_of, write_shape  # noqa: E402

SMALL = model.Config(
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=4,
    linear_num_key_heads=1,
    linear_num_value_heads=1,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
)
RECIPE = train.Recipe(train.TIMED, SMALL, model.sampled, tokens=400, back=2)


def timed(limit: float, step: float, recipe: train.Recipe = RECIPE) -> train.Run:
    """A run whose every step takes so many seconds."""
    torch.set_num_threads(1)
    run = train.Run(recipe, train.Share(), limit=limit)
    run.now = lambda: step * (run.step + 1)
    return run


@pytest.mark.parametrize("step", [1.0, 7.0])
def test_a_timed_run_ends_cooled_down_at_the_last_level(step: float) -> None:
    run, rates, levels = timed(100, step), [], []
    while run.advance():
        run.train_step()
        rates.append(run.rate())
        levels.append(run.level)
    assert run.step == math.ceil(100 / step)
    assert levels == sorted(levels)
    assert levels[-1] == len(train.TIMED[0].levels) - 1
    assert rates[-1] == 0
    falling = rates[rates.index(max(rates)) :]
    assert falling == sorted(falling, reverse=True)


def test_levels_last_as_long_as_their_share_of_the_time() -> None:
    run = timed(100, 1)
    for level in train.TIMED[0].levels[:-1]:
        while run.seconds <= level.until * 100:
            before = run.level
            run.seconds += 1
            run.by_time()
        assert run.level == before + 1


def test_a_good_accuracy_ends_a_level_early() -> None:
    run = timed(1000, 0.01)
    run.since = 1000
    run.judge(dict.fromkeys(KINDS, 1.0) | {"answer": 0.1})
    assert run.level == 0
    for _ in range(60):
        run.judge(dict.fromkeys(KINDS, 1.0) | {"answer": 0.1})
    assert run.level == 1


def test_a_run_goes_back_from_a_loss_that_is_no_number() -> None:
    run = timed(100, 1)
    for _ in range(12):
        run.train_step()
    kept = {name: t.clone() for name, t in run.good.items()}
    with torch.no_grad():
        run.model.model.norm.weight.fill_(math.nan)
    (line,) = run.train_step()
    assert line["retreat"] == run.damped < 1
    assert all(torch.equal(t, kept[name]) for name, t in run.model.state_dict().items())
    assert math.isfinite(run.train_step()[0]["answer"])


def test_a_feed_keeps_the_order() -> None:
    level = train.TIMED[0].levels[0]
    feed = train.Feed(2)
    try:
        for seed in range(5):
            feed.ask(seed, level, 300)
        for seed in range(5):
            made, expected = feed.take(), train.make(seed, level, 300)
            assert (made.ids == expected.ids).all()
            assert (made.marks == expected.marks).all()
    finally:
        feed.close()


def test_a_batch_marks_every_word_of_every_answer() -> None:
    made = train.make(3, train.TIMED[0].levels[2], 1500)
    b = train.batch(made)
    assert len(made.kinds) == int(b.answers.max()) == len(b.kinds)
    assert b.ids.shape[1] % model.CHUNK == 0
    assert int((b.targets[b.answers > 0] == 1).sum()) == len(made.kinds)  # each ends with <end>
    assert not (b.answers[~b.real] > 0).any()


def test_counts_are_those_of_questions_answered_whole() -> None:
    run = timed(100, 1)
    b = train.batch(train.make(4, train.TIMED[0].levels[0], 600))
    with torch.no_grad():
        _, logged = train.loss_of(run.model, b, 0.1)
        right = run.model(b.ids).argmax(-1) == b.targets
    asked = [int((b.kinds == i).sum()) for i in range(len(KINDS))]
    assert logged[2 + len(KINDS) :].tolist() == asked
    good = [0] * len(KINDS)
    for i, kind in enumerate(b.kinds.tolist()):
        good[kind] += bool(right[b.answers == i + 1].all())
    assert logged[2 : 2 + len(KINDS)].tolist() == good


def test_every_tensor_of_a_step_is_on_the_device_of_the_model(monkeypatch) -> None:
    """On meta, where anything made elsewhere is an error; states walk as they do on a GPU."""
    monkeypatch.setattr(model, "by_writes", model.by_transitions)
    meta = torch.device("meta")
    run = train.Run(RECIPE, train.Share(), meta)
    b = train.batch(train.make(5, train.TIMED[0].levels[1], 600), meta)
    loss, logged = train.loss_of(run.model, b, 0.1)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.muon.step(0.1)
    assert {loss.device, logged.device} == {meta}
    assert {p.grad.device for p in run.model.parameters()} == {meta}


def test_the_long_recipe_writes_what_it_was_trained_for(tmp_path: Path) -> None:
    recipe = train.RECIPES["long"]
    run = train.Run(recipe, train.Share())
    train.write_model(run.model, tmp_path, recipe.shape())
    assert (tmp_path / "model.safetensors").stat().st_size <= 8 << 20
    assert shape_of(tmp_path) == LONG
    assert model.Config.read(tmp_path) == model.WIDE
    assert json.loads((tmp_path / "config.json").read_text())["linear_value_head_dim"] == 128


def test_a_folder_without_a_shape_has_the_default_one(tmp_path: Path) -> None:
    assert shape_of(tmp_path) == Shape()
    write_shape(LONG, tmp_path)
    assert shape_of(tmp_path) == LONG
