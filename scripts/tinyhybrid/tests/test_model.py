"""The training model against transformers, and its own recurrence token by token."""

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

import model  # noqa: E402


def seeded(c: "model.Config" = model.NARROW) -> "model.Model":
    net = model.Model(c)
    model.initialise(net, 3)
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() == 1:
                p += 0.1 * torch.randn(p.shape, generator=rng)
    return net


@pytest.mark.parametrize("c", [model.NARROW, model.WIDE], ids=["narrow", "wide"])
def test_logits_are_those_of_transformers(tmp_path: Path, c: "model.Config") -> None:
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    model.save(seeded(c), tmp_path)
    ours = model.load(tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    ids = torch.randint(0, 600, (2, 150), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        difference = (ours(ids) - theirs(ids).logits).abs().max()
    assert difference < 1e-4


def by_tokens(q, k, v, g, beta, state):
    """The outputs and the last state, token by token."""
    out = []
    for t in range(q.shape[2]):
        state = state * g[..., t].exp()[..., None, None]
        write = beta[..., t, None] * (v[..., t, :] - (k[..., t, None, :] @ state)[..., 0, :])
        state = state + k[..., t, :, None] * write[..., None, :]
        out.append((q[..., t, None, :] @ state)[..., 0, :])
    return torch.stack(out, 2), state


@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize("walk", [model.by_writes, model.by_transitions])
def test_the_delta_rule_in_chunks_is_the_one_by_tokens(chunk: int, walk, monkeypatch) -> None:
    monkeypatch.setattr(model, "by_writes", walk)
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(6)
    b, h, n, dk, dv = 2, 3, 128, 8, 4

    def normal(*shape: int) -> "torch.Tensor":
        return torch.randn(shape, generator=rng)

    q, k, v = model.unit(normal(b, h, n, dk)), model.unit(normal(b, h, n, dk)), normal(b, h, n, dv)
    g, beta = -torch.rand((b, h, n), generator=rng), normal(b, h, n).sigmoid()
    state = normal(b, h, dk, dv)
    out, end = model.delta_rule(q, k, v, g, beta, state, chunk)
    expected, last = by_tokens(q, k, v, g, beta, state)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(end, last, atol=1e-5)


def test_both_walks_have_the_same_gradients() -> None:
    rng = torch.Generator().manual_seed(8)
    shapes = [(2, 2, 3, 16, 5), (2, 2, 3, 16, 6), (2, 2, 3, 6, 16), (2, 2, 3, 1, 1), (2, 2, 6, 5)]
    given = [torch.randn(s, generator=rng, dtype=torch.float64) / 4 for s in shapes]
    grads = []
    for walk in (model.by_writes, model.by_transitions):
        inputs = [t.clone().requires_grad_() for t in given]
        parts = walk(*inputs)
        sum((p * p).sum() for p in parts).backward()
        grads.append([t.grad for t in inputs])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("n", [32, 64])
def test_the_inverse_stands_equal_keys(n: int) -> None:
    """All keys alike and full strength: the powers of the whole matrix would overflow the sum."""
    a = torch.ones(n, n).tril(-1).requires_grad_()
    x = model.Inverse.apply(a)
    expected = torch.eye(n) - torch.diag(torch.ones(n - 1), -1)
    assert torch.allclose(x, expected, atol=1e-3)
    x.sum().backward()
    assert all(math.isfinite(g) for g in a.grad.flatten().tolist())


@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize("alike", [0.0, 0.9, 0.999])
def test_wide_heads_stay_exact_over_long_notes(chunk: int, alike: float, monkeypatch) -> None:
    """Decays as sampled, keys of any likeness, strengths near 1, float64 beside it."""
    monkeypatch.setattr(model, "by_writes", model.by_transitions)
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(9)
    h, n, d = 12, 1024, 128
    a_log, dt_bias = model.sampled(h, rng)

    def normal(*shape: int) -> "torch.Tensor":
        return torch.randn(shape, generator=rng)

    k = alike**0.5 * normal(1, h, 1, d) + (1 - alike) ** 0.5 * normal(1, h, n, d)
    q, k, v = model.unit(normal(1, h, n, d)) * d**-0.5, model.unit(k), normal(1, h, n, d)
    step = torch.nn.functional.softplus(normal(1, h, n) + dt_bias[:, None])
    g, beta = -a_log.exp()[:, None] * step, (normal(1, h, n) + 2).sigmoid()
    given = [t.double() for t in (q, k, v, g, beta)]
    expected, last = by_tokens(*given, torch.zeros(1, h, d, d, dtype=torch.float64))
    out, end = model.delta_rule(q, k, v, g, beta, chunk=chunk)
    assert (out - expected).norm() < 1e-4 * expected.norm()
    assert (end - last).norm() < 1e-4 * last.norm()


def test_sampled_decays_are_those_of_flash_linear_attention() -> None:
    a_log, dt_bias = model.sampled(20000, torch.Generator().manual_seed(10))
    a, dt = a_log.exp(), torch.nn.functional.softplus(dt_bias)
    assert a.max() < 16
    assert abs(float(a.mean()) - 8) < 0.1
    assert 0.00099 < dt.min() < dt.max() < 0.101
    assert abs(float(dt.log().mean()) - math.log(0.01)) < 0.03


def test_wider_heads_are_the_same_function() -> None:
    torch.set_num_threads(1)
    net = seeded()
    ids = torch.randint(0, 600, (2, 90), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = net(ids)
        difference = (logits - model.widened(net, 64)(ids)).abs().max()
    # What is left is the smaller eps of the norms over the residual stream.
    assert difference < 2e-3 * logits.std()
