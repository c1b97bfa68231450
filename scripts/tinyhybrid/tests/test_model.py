"""The training model against transformers, and its own recurrence token by token."""

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine

import model  # noqa: E402


def seeded() -> "model.Model":
    net = model.Model(model.Config())
    model.initialise(net, 3)
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
    ours = model.load(tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    ids = torch.randint(0, 600, (2, 150), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        difference = (ours(ids) - theirs(ids).logits).abs().max()
    assert difference < 1e-4


def test_the_delta_rule_in_chunks_is_the_one_by_tokens() -> None:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(6)
    b, h, n, dk, dv = 2, 3, 2 * model.CHUNK, 8, 4

    def normal(*shape: int) -> "torch.Tensor":
        return torch.randn(shape, generator=rng)

    q, k, v = model.unit(normal(b, h, n, dk)), model.unit(normal(b, h, n, dk)), normal(b, h, n, dv)
    g, beta = -torch.rand((b, h, n), generator=rng), normal(b, h, n).sigmoid()
    state, start = normal(b, h, dk, dv), None
    out, end = model.delta_rule(q, k, v, g, beta, state)
    start = state
    for t in range(n):
        start = start * g[..., t].exp()[..., None, None]
        write = beta[..., t, None] * (v[..., t, :] - (k[..., t, None, :] @ start)[..., 0, :])
        start = start + k[..., t, :, None] * write[..., None, :]
        assert torch.allclose(out[..., t, :], (q[..., t, None, :] @ start)[..., 0, :], atol=1e-5)
    assert torch.allclose(end, start, atol=1e-5)


def test_the_inverse_stands_equal_keys() -> None:
    """All keys alike and full strength: the powers of the whole matrix would overflow the sum."""
    n = model.CHUNK
    a = torch.ones(n, n).tril(-1).requires_grad_()
    x = model.Inverse.apply(a)
    expected = torch.eye(n) - torch.diag(torch.ones(n - 1), -1)
    assert torch.allclose(x, expected, atol=1e-3)
    x.sum().backward()
    assert all(math.isfinite(g) for g in a.grad.flatten().tolist())


def test_wider_heads_are_the_same_function() -> None:
    torch.set_num_threads(1)
    net = seeded()
    ids = torch.randint(0, 600, (2, 90), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = net(ids)
        difference = (logits - model.widened(net, 64)(ids)).abs().max()
    # What is left is the smaller eps of the norms over the residual stream.
    assert difference < 2e-3 * logits.std()
