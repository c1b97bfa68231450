"""The training model with Mamba2 layers against transformers, and its recurrence token by token."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

import decays  # noqa: E402
import mamba2  # noqa: E402
import model  # noqa: E402
import train  # noqa: E402

C = mamba2.Config()


def seeded() -> "model.Model":
    net = model.Model(C)
    model.initialise(net, 3, model.sampled)
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() == 1:
                p += 0.1 * torch.randn(p.shape, generator=rng)
    return net


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    model.save(seeded(), tmp_path)
    ours = mamba2.load(tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    ids = torch.randint(0, 600, (2, 150), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
        assert torch.allclose(ours(ids), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def by_tokens(v, g, k, q):
    """The outputs and the last state [B, H, N, P], token by token."""
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[2], v.shape[3])
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp() + k[:, t, None, :, None] * v[:, t, :, None, :]
        out.append((q[:, t, None, None] @ state)[..., 0, :])
    return torch.stack(out, 1), state


def drawn(n: int = 128) -> list["torch.Tensor"]:
    """Values, log decays from weak to strong, keys and queries, in float64."""
    rng = torch.Generator().manual_seed(6)
    b, h, p, state = 2, 3, 4, 8
    v, g, k, q = (
        torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in ((b, n, h, p), (b, n, h), (b, n, state), (b, n, state))
    )
    return [v, -(2 * g).exp(), k, q]


@pytest.mark.parametrize("chunk", [32, 64])
def test_the_recurrence_in_chunks_is_the_one_by_tokens(chunk: int) -> None:
    given = drawn()
    expected, last = by_tokens(*given)
    out, end = mamba2.ssd(*given, chunk)
    by_head = end.unflatten(-1, (3, 4)).transpose(1, 2)
    assert torch.allclose(out, expected, atol=1e-9)
    assert torch.allclose(by_head, last, atol=1e-9)
    single, _ = mamba2.ssd(*(t.float() for t in given), chunk)
    assert (single - expected).norm() < 1e-5 * expected.norm()


def test_gradients_in_chunks_are_those_by_tokens() -> None:
    grads = []
    for way in (by_tokens, lambda *given: mamba2.ssd(*given, 32)):
        given = [t.clone().requires_grad_() for t in drawn(64)]
        out, _ = way(*given)
        (out * torch.arange(out.numel()).view_as(out).sin()).sum().backward()
        grads.append([t.grad for t in given])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_padding_changes_nothing_before_it() -> None:
    torch.set_num_threads(1)
    net = seeded()
    ids = torch.randint(0, 600, (1, 90), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        assert torch.allclose(net(ids)[:, :41], net(ids[:, :41]), atol=1e-5)


def test_a_heads_transition_is_what_is_left_of_a_state() -> None:
    layer = seeded().model.layers[0].mamba
    x = torch.randn(1, 64, C.hidden_size, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        _, _, v, g, k, q = layer.prepare(x)
        _, both = mamba2.ssd(v, g, k, q, 32)
        _, first = mamba2.ssd(v[:, :32], g[:, :32], k[:, :32], q[:, :32], 32)
        v[:, :32] = 0
        _, second = mamba2.ssd(v, g, k, q, 32)
        # What comes before the second half in it, beside the transition of that half.
        left = (both - second).unflatten(-1, (-1, C.mamba_d_head))
        share = g[0, 32:].sum(0).exp()[:, None]
        assert torch.allclose(left, first.unflatten(-1, (-1, C.mamba_d_head)) * share, atol=1e-5)
        found = decays.of_layer(layer, x)
    assert torch.allclose(found.transition[:, 0, 0], g[0].sum(0).exp())
    assert found.logs.shape == (C.mamba_n_heads, 64)


def test_the_recipe_writes_a_model_that_is_read_again(tmp_path: Path) -> None:
    recipe = train.RECIPES["mamba"]
    run = train.Run(recipe, train.Share(), limit=100)
    train.write_model(run.model, tmp_path, recipe.shape())
    assert (tmp_path / "model.safetensors").stat().st_size <= 6 << 20
    assert mamba2.Config.read(tmp_path) == C
    assert json.loads((tmp_path / "config.json").read_text())["mamba_d_head"] == 64
    ids = torch.arange(40)[None]
    with torch.no_grad():
        again = mamba2.load(tmp_path)(ids)
        assert (again - run.model(ids)).norm() < 0.05 * again.norm()


def test_a_short_timed_run_learns_something() -> None:
    torch.set_num_threads(1)
    recipe = train.Recipe(train.HOUR, C, model.sampled, tokens=1500, back=2)
    run = train.Run(recipe, train.Share(), limit=100)
    run.now = lambda: run.step + 1.0
    losses = [line["language"] for _ in range(12) for line in run.train_step()]
    assert losses[-1] < losses[0] - 0.5
