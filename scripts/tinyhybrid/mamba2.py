"""The hybrid model with the arithmetic of transformers' BambaForCausalLM, made to train fast.

Mamba2 layers replace the gated DeltaNet of `model.py`: the state decays by one number per head and
token and adds an outer product, without a delta rule. As in `model.py`, parameters have the names
of transformers' state dict, and every row of a batch is a whole sequence.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import model
from model import Conv, Linear, Mlp, Model, causal


@dataclass(frozen=True)
class Config:
    """The shape of the model, by the names of transformers' configuration."""

    vocab_size: int = 640
    hidden_size: int = 128
    intermediate_size: int = 448
    num_hidden_layers: int = 8
    attn_layer_indices: tuple[int, ...] = (3, 7)
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 32
    rope_theta: float = 10000.0
    mamba_n_heads: int = 4
    mamba_d_head: int = 64
    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    eos_token_id: int = 1
    pad_token_id: int = 0

    @property
    def inner(self) -> int:
        """Channels of all heads of a Mamba2 layer."""
        return self.mamba_n_heads * self.mamba_d_head

    def is_full(self, layer: int) -> bool:
        return layer in self.attn_layer_indices

    def body(self, chunk: int) -> Body:
        return Body(self, chunk)

    def to_json(self) -> str:
        """config.json as transformers reads it."""
        c = asdict(self)
        c |= {
            "architectures": ["BambaForCausalLM"],
            "model_type": "bamba",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "mamba_chunk_size": model.CHUNK,
            "mamba_conv_bias": False,
            "mamba_expand": self.inner // self.hidden_size,
            "mamba_n_groups": 1,
            "mamba_proj_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": c.pop("rope_theta"),
                "partial_rotary_factor": c.pop("rotary_dim") / self.head_dim,
            },
        }
        return json.dumps(c, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Config:
        """The configuration that to_json wrote in a model's folder."""
        c = json.loads((folder / "config.json").read_text())
        rope = c["rope_parameters"]
        c["rope_theta"] = rope["rope_theta"]
        c["rotary_dim"] = round(rope["partial_rotary_factor"] * c["head_dim"])
        c["attn_layer_indices"] = tuple(c["attn_layer_indices"])
        return cls(**{f.name: c[f.name] for f in fields(cls)})


class Norm(nn.Module):
    """RMSNorm, in float32."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def chunked(
    v: Tensor, total: Tensor, k: Tensor, q: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes what does not depend on the state before a chunk (Dao and Gu 2024, section 6).

    v [B, m, C, H, P], sums of log decays `total` [B, m, C, H], keys and queries [B, m, C, N] of all
    heads. Returns what tokens read from their chunk [B, m, C, H, P], what chunks write from a zero
    state [B, m, N, H * P], the share of a state that a chunk keeps [B, m, 1, H * P], and the share
    of the state before the chunk that is left at each token [B, m, C, H].
    """
    c = total.shape[2]
    lower = torch.ones(c, c, dtype=torch.bool, device=v.device).tril()
    by_head = total.transpose(2, 3)
    pair = by_head[..., :, None] - by_head[..., None, :]
    scores = (q @ k.mT)[:, :, None] * pair.masked_fill(~lower, -math.inf).exp()
    within = (scores @ v.transpose(2, 3)).transpose(2, 3)
    last = total[:, :, -1:]
    writes = k.mT @ (v * (last - total).exp()[..., None]).flatten(-2)
    kept = last.exp().repeat_interleave(v.shape[-1], -1)
    return within, writes, kept, total.exp()


def starts(writes: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the states before the chunks [B, m, N, H * P], from zero, and the last state."""
    s = torch.zeros_like(writes[:, 0])
    before = []
    # unbind, because the gradient of indexing fills a whole tensor with zeros for every chunk.
    for write, share in zip(writes.unbind(1), kept.unbind(1), strict=True):
        before.append(s)
        s = torch.addcmul(write, s, share)
    return torch.stack(before, 1), s


def ssd(v: Tensor, g: Tensor, k: Tensor, q: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Runs the recurrence S' = exp(g) S + k v^T over whole chunks; q reads S' after each token.

    Values v [B, n, H, P], log decays g [B, n, H], keys k and queries q [B, n, N] of all heads; n a
    multiple of chunk. Returns the outputs [B, n, H, P] and the state after the last token
    [B, N, H * P].
    """
    v, g, k, q = (t.unflatten(1, (-1, chunk)) for t in (v, g, k, q))
    within, writes, kept, left = chunked(v, g.cumsum(2), k, q)
    before, last = starts(writes, kept)
    out = within + (q @ before).unflatten(-1, v.shape[-2:]) * left[..., None]
    return out.flatten(1, 2), last


class Mamba2(nn.Module):
    """Mamba2 of one group: keys and queries are B and C, values the inputs times the time steps."""

    def __init__(self, c: Config, chunk: int):
        super().__init__()
        self.c = c
        self.chunk = chunk
        mixed = c.inner + 2 * c.mamba_d_state
        self.in_proj = Linear(c.hidden_size, c.inner + mixed + c.mamba_n_heads)
        self.conv1d = Conv(mixed, c.mamba_d_conv)
        self.dt_bias = nn.Parameter(torch.zeros(c.mamba_n_heads))
        self.A_log = nn.Parameter(torch.zeros(c.mamba_n_heads))
        self.D = nn.Parameter(torch.ones(c.mamba_n_heads))
        self.norm = Norm(c.inner, c.rms_norm_eps)
        self.out_proj = Linear(c.inner, c.hidden_size)

    def prepare(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the gate [B, n, H * P], inputs u and values v [B, n, H, P], log decays g [B, n,
        H], keys and queries [B, n, N]."""
        c = self.c
        sizes = [c.inner, c.inner + 2 * c.mamba_d_state, c.mamba_n_heads]
        gate, mixed, dt = self.in_proj(x).split(sizes, -1)
        mixed = self.conv1d(mixed.float())
        u, k, q = mixed.split([c.inner, c.mamba_d_state, c.mamba_d_state], -1)
        u = u.unflatten(-1, (c.mamba_n_heads, c.mamba_d_head))
        step = F.softplus(dt.float() + self.dt_bias)
        return gate, u, u * step[..., None], -self.A_log.exp() * step, k, q

    def finish(self, out: Tensor, u: Tensor, gate: Tensor) -> Tensor:
        """Returns the layer's output. D adds the inputs, which bypass the state; one norm over all
        heads follows the gate."""
        out = (out + self.D[:, None] * u).flatten(-2)
        return self.out_proj(self.norm(out * F.silu(gate.float())).to(gate.dtype))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        x = F.pad(x, (0, 0, 0, -n % self.chunk))
        gate, u, v, g, k, q = self.prepare(x)
        out, _ = ssd(v, g, k, q, self.chunk)
        return self.finish(out, u, gate)[:, :n]


class Attention(nn.Module):
    """Grouped attention with partial rope, without norms or a gate."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.k_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.v_proj = Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.o_proj = Linear(c.num_attention_heads * c.head_dim, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        q, k, v = (
            p(x).unflatten(-1, (-1, c.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = causal(q.float(), k.float(), v, c.rotary_dim, c.rope_theta)
        return self.o_proj(out.flatten(-2))


class Layer(nn.Module):
    def __init__(self, c: Config, index: int, chunk: int):
        super().__init__()
        self.full = c.is_full(index)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.mamba = Mamba2(c, chunk)
        self.feed_forward = Mlp(c)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.pre_ff_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    @property
    def mixer(self) -> nn.Module:
        return self.self_attn if self.full else self.mamba

    def forward(self, x: Tensor, compute: torch.dtype) -> Tensor:
        x = x + self.mixer(self.input_layernorm(x).to(compute)).float()
        return x + self.feed_forward(self.pre_ff_layernorm(x).to(compute)).float()


class Body(nn.Module):
    def __init__(self, c: Config, chunk: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i, chunk) for i in range(c.num_hidden_layers))
        self.final_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    @property
    def norm(self) -> nn.Module:
        return self.final_layernorm


def load(folder: Path) -> Model:
    """Returns the model of a folder written by model.save, of either kind, in float32."""
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    return model.load(folder, Config if kind == "bamba" else model.Config)
