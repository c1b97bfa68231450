"""The hybrid model with the arithmetic of transformers' Qwen3_5ForCausalLM, made to train fast.

Parameters carry the names of transformers' state dict, so weights go either way
without a mapping. Three things differ from the library, none of them in what is
computed: the gated delta rule inverts its triangular systems by blocks instead
of solving them, the convolution is four shifted products, and no padding, cache
or mask exists: every row of a batch is a whole sequence.

The matrix products run in `compute` (bfloat16 while training: this is what makes
a CPU with matrix units fast); norms, gates and the recurrence run in float32.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 32


@dataclass(frozen=True)
class Config:
    """The shape of the model, by the names of transformers' configuration."""

    vocab_size: int = 640
    hidden_size: int = 128
    intermediate_size: int = 448
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 10000.0
    linear_conv_kernel_dim: int = 4
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    eos_token_id: int = 1
    pad_token_id: int = 0

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    def to_json(self) -> str:
        """config.json as transformers and vLLM read it."""
        c = asdict(self)
        rotary = c.pop("rotary_dim")
        c |= {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "layer_types": [
                "full_attention" if self.is_full(i) else "linear_attention"
                for i in range(self.num_hidden_layers)
            ],
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": c.pop("rope_theta"),
                "partial_rotary_factor": rotary / self.head_dim,
            },
        }
        return json.dumps(c, indent=2, sort_keys=True) + "\n"


class Norm(nn.Module):
    """RMSNorm whose weight is an offset from one."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class GatedNorm(nn.Module):
    """RMSNorm of a head's output times the silu of its gate."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * x * F.silu(gate.float())


class Linear(nn.Module):
    """A product without bias, in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Conv(nn.Module):
    """The causal convolution over each channel, followed by silu."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))

    def forward(self, x: Tensor) -> Tensor:
        n, kernel = x.shape[1], self.weight.shape[2]
        padded = F.pad(x, (0, 0, kernel - 1, 0))
        w = self.weight[:, 0]
        out = padded[:, :n] * w[:, 0]
        for i in range(1, kernel):
            out = out + padded[:, i : i + n] * w[:, i]
        return F.silu(out)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def invert(a: Tensor) -> Tensor:
    """The inverse of identity plus a, with a strictly lower triangular [..., C, C].

    Blocks of 16 by products of powers; those stay small enough for float32 there,
    and would not for 64 nearly equal keys. Then pairs of blocks are joined.
    """
    size = 16
    n = a.shape[-1] // size
    eye = torch.eye(size, dtype=a.dtype, device=a.device)
    blocks = torch.stack(
        [a[..., i * size : (i + 1) * size, i * size : (i + 1) * size] for i in range(n)], -3
    )
    power = -blocks
    inverse = eye + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    parts = list(inverse.unbind(-3))
    while len(parts) > 1:
        joined = []
        for i in range(0, len(parts), 2):
            x, y = parts[i], parts[i + 1]
            lo = (i + 1) * size
            below = -(y @ a[..., lo : lo + size, lo - size : lo] @ x)
            top = torch.cat([x, torch.zeros_like(x)], -1)
            joined.append(torch.cat([top, torch.cat([below, y], -1)], -2))
        parts, size = joined, size * 2
    return parts[0]


class Inverse(torch.autograd.Function):
    """`invert` with the gradient of an inverse, instead of that of its steps."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        x = invert(a)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = x.transpose(-1, -2)
        return -(t @ grad @ t)


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """What every chunk contributes whatever the state before it; shapes as in delta_rule.

    Returns, chunk by chunk: the writes u from a zero state and how the state lowers
    them (w), queries and keys scaled to the ends of the chunk, the share of the state
    that is kept, and the attention inside.
    """
    b, h, n, dk = q.shape
    dv, m, c = v.shape[-1], n // CHUNK, CHUNK
    q, k, v = q.view(b, h, m, c, dk), k.view(b, h, m, c, dk), v.view(b, h, m, c, dv)
    g, beta = g.view(b, h, m, c).cumsum(-1), beta.view(b, h, m, c, 1)
    lower = torch.ones(c, c, dtype=torch.bool, device=q.device).tril()
    pair = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, -math.inf).exp()
    kt = k.transpose(-1, -2)
    solve = Inverse.apply(((k * beta) @ kt * pair).tril(-1))
    grown = g.exp()[..., None]
    u, w = solve @ (v * beta), solve @ (k * (beta * grown))
    ends = (k * (g[..., -1:] - g).exp()[..., None]).transpose(-1, -2)
    return u, w, q * grown, ends, g[..., -1].exp()[..., None, None], q @ kt * pair


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over whole chunks.

    q, k [B, H, n, dk] with unit keys and scaled queries, v [B, H, n, dv], log
    decays g and strengths beta [B, H, n], state [B, H, dk, dv]; n a multiple of
    CHUNK. Returns the outputs [B, H, n, dv] and the state after the last token.
    """
    b, h, n, dk = q.shape
    u, w, q, k, kept, within = chunked(q, k, v, g, beta)
    s = q.new_zeros(b, h, dk, v.shape[-1]) if state is None else state
    before, news = [], []
    # unbind: the gradient of indexing would fill a whole tensor with zeros for every chunk.
    for u_i, w_i, k_i, kept_i in zip(*(t.unbind(2) for t in (u, w, k, kept)), strict=True):
        before.append(s)
        news.append(u_i - w_i @ s)
        s = s * kept_i + k_i @ news[-1]
    out = q @ torch.stack(before, 2) + within @ torch.stack(news, 2)
    return out.reshape(b, h, n, v.shape[-1]), s


class DeltaNet(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.keys = c.linear_num_key_heads * c.linear_key_head_dim
        self.values = c.linear_num_value_heads * c.linear_value_head_dim
        heads = c.linear_num_value_heads
        self.in_proj_qkv = Linear(c.hidden_size, 2 * self.keys + self.values)
        self.in_proj_z = Linear(c.hidden_size, self.values)
        self.in_proj_b = Linear(c.hidden_size, heads)
        self.in_proj_a = Linear(c.hidden_size, heads)
        self.conv1d = Conv(2 * self.keys + self.values, c.linear_conv_kernel_dim)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = GatedNorm(c.linear_value_head_dim, c.rms_norm_eps)
        self.out_proj = Linear(self.values, c.hidden_size)

    def prepare(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, g, beta of every value head, [B, H, n, ...]."""
        c = self.c
        mixed = self.conv1d(self.in_proj_qkv(x).float())
        q, k, v = mixed.split([self.keys, self.keys, self.values], -1)
        per = c.linear_num_value_heads // c.linear_num_key_heads
        q = unit(q.unflatten(-1, (-1, c.linear_key_head_dim))) * c.linear_key_head_dim**-0.5
        k = unit(k.unflatten(-1, (-1, c.linear_key_head_dim)))
        q, k = q.repeat_interleave(per, 2), k.repeat_interleave(per, 2)
        v = v.unflatten(-1, (-1, c.linear_value_head_dim))
        beta = self.in_proj_b(x).float().sigmoid()
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return tuple(t.transpose(1, 2).contiguous() for t in (q, k, v, g, beta))

    def finish(self, out: Tensor, x: Tensor) -> Tensor:
        z = self.in_proj_z(x).unflatten(-1, (-1, self.c.linear_value_head_dim))
        return self.out_proj(self.norm(out.transpose(1, 2), z).flatten(-2).to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        pad = -n % CHUNK
        x = F.pad(x, (0, 0, 0, pad))
        out, _ = delta_rule(*self.prepare(x))
        return self.finish(out, x)[:, :n]


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim)
        self.k_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.v_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.o_proj = Linear(c.num_attention_heads * c.head_dim, c.hidden_size)
        self.q_norm = Norm(c.head_dim, c.rms_norm_eps)
        self.k_norm = Norm(c.head_dim, c.rms_norm_eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        r = self.c.rotary_dim
        a, b, rest = x[..., : r // 2], x[..., r // 2 : r], x[..., r:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * c.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (-1, c.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, c.head_dim))
        r = c.rotary_dim
        turn = c.rope_theta ** (-torch.arange(0, r, 2, device=x.device) / r)
        angle = torch.arange(x.shape[1], device=x.device)[:, None, None] * turn
        cos, sin = angle.cos(), angle.sin()
        q = self.rotate(self.q_norm(q), cos, sin).to(x.dtype).transpose(1, 2)
        k = self.rotate(self.k_norm(k), cos, sin).to(x.dtype).transpose(1, 2)
        per = c.num_attention_heads // c.num_key_value_heads
        k, v = k.repeat_interleave(per, 1), v.transpose(1, 2).repeat_interleave(per, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(-2) * gate.flatten(-2).sigmoid())


class Mlp(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, c.intermediate_size)
        self.up_proj = Linear(c.hidden_size, c.intermediate_size)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, index: int):
        super().__init__()
        self.full = c.is_full(index)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c)
        self.mlp = Mlp(c)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, compute: torch.dtype) -> Tensor:
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.input_layernorm(x).to(compute)).float()
        return x + self.mlp(self.post_attention_layernorm(x).to(compute)).float()


class Body(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class Model(nn.Module):
    """A causal language model with tied embeddings."""

    def __init__(self, c: Config, compute: torch.dtype = torch.float32):
        super().__init__()
        self.c = c
        self.compute = compute
        self.model = Body(c)

    def hidden(self, ids: Tensor) -> Tensor:
        """The normed output of the last layer for ids [B, n]: [B, n, hidden], float32."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.compute)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self.compute), self.model.embed_tokens.weight.to(self.compute))

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids)).float()


def initialise(model: Model, seed: int) -> None:
    """Small normal weights, and heads of the delta rule whose memory spans 8 to 2,000 tokens."""
    rng = torch.Generator().manual_seed(seed)
    c = model.c
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("conv1d.weight"):
                p.normal_(0, 0.2, generator=rng)
                p[:, 0, -1] += 0.5
            elif name.endswith("embed_tokens.weight"):
                p.normal_(0, 0.1, generator=rng)
            elif p.dim() == 2:
                last = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                scale = (2 * c.num_hidden_layers) ** -0.5 if last else 1.0
                p.normal_(0, scale * p.shape[1] ** -0.5, generator=rng)
            elif name.endswith("A_log"):
                spans = torch.logspace(math.log10(8), math.log10(2000), p.numel())
                p.copy_(torch.log(1 / (spans * math.log(2))))


def widened(net: Model, width: int) -> Model:
    """The same function with linear heads of `width` dims, the new ones zero.

    Engines have kernels for some widths only. Keys and queries are normalised, so
    zeros change nothing there. Queries are scaled by width^-1/2 and the norm of a head's
    output takes its mean over more channels: both shrink the square that eps is added
    to by old / width, so eps shrinks with it, and the weight takes back the rest. (In
    the other norms eps is far below what it is added to.)
    """
    c = net.c
    old = c.linear_key_head_dim
    if c.linear_value_head_dim != old:
        raise ValueError("key and value heads of different widths")
    eps = c.rms_norm_eps * (old / width) ** 2
    wider = replace(c, linear_key_head_dim=width, linear_value_head_dim=width, rms_norm_eps=eps)
    wide = Model(wider, net.compute)
    tensors = {}
    for name, t in net.state_dict().items():
        if ".linear_attn." in name:
            if name.endswith(("in_proj_qkv.weight", "in_proj_z.weight", "conv1d.weight")):
                t = F.pad(t.unflatten(0, (-1, old)).movedim(1, -1), (0, width - old))
                t = t.movedim(-1, 1).flatten(0, 1)
            elif name.endswith("out_proj.weight"):
                t = F.pad(t.unflatten(1, (-1, old)), (0, width - old)).flatten(1)
            elif name.endswith("norm.weight"):
                t = F.pad(t * (old / width) ** 0.5, (0, width - old))
        tensors[name] = t
    wide.load_state_dict(tensors)
    return wide


def save(model: Model, folder: Path) -> None:
    """Writes config.json and model.safetensors in bfloat16, named as transformers names them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(model.c.to_json())


def load(folder: Path, c: Config = Config()) -> Model:
    """The model of a folder written by save, in float32."""
    from safetensors.torch import load_file

    model = Model(c)
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({n: t.float() for n, t in tensors.items()})
    return model
