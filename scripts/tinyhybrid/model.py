"""The hybrid model with the arithmetic of transformers' Qwen3_5ForCausalLM, made to train fast.

Parameters have the names of transformers' state dict, so weights can be copied in
both directions without a mapping. Three things differ from the library, but not
the results: the gated delta rule inverts its triangular systems by blocks instead
of solving them, the convolution is four shifted products, and there is no padding,
cache or mask, because every row of a batch is a whole sequence.

The matrix products run in `compute` (bfloat16 while training, which is
fast on a CPU with matrix units); norms, gates and the recurrence run in float32.

On a GPU, kernel launches take most of the time. So the states at the starts of chunks
are computed from the chunks' transitions there, by one product per chunk (`Starts`)
instead of two products and a sum.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
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

    def body(self, chunk: int) -> Body:
        return Body(self, chunk)

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

    @classmethod
    def read(cls, folder: Path) -> Config:
        """The configuration that to_json wrote in a model's folder."""
        c = json.loads((folder / "config.json").read_text())
        rope = c["rope_parameters"]
        c["rope_theta"] = rope["rope_theta"]
        c["rotary_dim"] = round(rope["partial_rotary_factor"] * c["head_dim"])
        return cls(**{f.name: c[f.name] for f in fields(cls)})


NARROW = Config()
# Few heads, as wide as the heads of large models, and room for 12 notes of 800 tokens.
WIDE = Config(
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    max_position_embeddings=16384,
)


class Norm(nn.Module):
    """RMSNorm whose weight is an offset from one."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight, self.eps)


class GatedNorm(nn.Module):
    """RMSNorm of a head's output times the silu of its gate."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps) * F.silu(gate.float())


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
            out = torch.addcmul(out, padded[:, i : i + n], w[:, i])
        return F.silu(out)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@contextmanager
def exact() -> Iterator[None]:
    """For one block, computes float32 products in full float32; a GPU might use TF32 otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def blocks(a: Tensor, size: int) -> Tensor:
    """Returns the diagonal blocks of matrices [..., C, C]: [..., C / size, size, size]."""
    n = a.shape[-1] // size
    both = a.unflatten(-1, (n, size)).unflatten(-3, (n, size))
    return both.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def invert(a: Tensor) -> Tensor:
    """Returns the inverse of identity plus a, where a [..., C, C] is strictly lower triangular.

    Blocks of 16 are inverted by products of powers. At this size powers stay small enough
    for float32; with 64 nearly equal keys they would not. Then pairs of blocks are joined.
    """
    size = 16
    eye = torch.eye(size, dtype=a.dtype, device=a.device)
    power = -blocks(a, size)
    inverse = eye + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    while size < a.shape[-1]:
        x, y = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        below = -(y @ blocks(a, 2 * size)[..., size:, :size] @ x)
        inverse = torch.cat([F.pad(x, (0, size)), torch.cat([below, y], -1)], -2)
        size *= 2
    return inverse[..., 0, :, :]


class Inverse(torch.autograd.Function):
    """`invert` with the gradient of a matrix inverse, instead of the gradients of its steps."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        with exact():
            x = invert(a)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = x.transpose(-1, -2)
        with exact():
            return -(t @ grad @ t)


class Starts(torch.autograd.Function):
    """Computes the states at the starts of all chunks, and the state after the last chunk.

    Chunk i takes a state S to moves[:, i] @ S + writes[:, i]; moves [B, m, dk, dk], writes
    [B, m, dk, dv], state [B, dk, dv]. Returns [m + 1, B, dk, dv]. Products are in full float32,
    because every chunk adds to the rounding error.
    """

    @staticmethod
    def forward(ctx, moves: Tensor, writes: Tensor, state: Tensor) -> Tensor:
        m = moves.shape[1]
        starts = torch.cat([state[None], writes.transpose(0, 1)])
        with exact():
            for i in range(m):
                starts[i + 1].baddbmm_(moves[:, i], starts[i])
        ctx.save_for_backward(moves, starts)
        return starts

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        moves, starts = ctx.saved_tensors
        m = moves.shape[1]
        back = moves.transpose(-1, -2)
        total = grad.clone(memory_format=torch.contiguous_format)
        with exact():
            for i in reversed(range(m)):
                total[i].baddbmm_(back[:, i], total[i + 1])
        writes = total[1:].transpose(0, 1)
        return writes @ starts[:-1].permute(1, 0, 3, 2), writes, total[0]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int
) -> tuple[Tensor, ...]:
    """Computes what does not depend on the state before a chunk; shapes as in delta_rule.

    Returns for each chunk: its writes u from a zero state, the matrix w by which a state
    S changes them (to u - w S), queries scaled by the decay from the chunk's start, keys
    scaled by the decay to its end (transposed), the share of the state that is kept, and
    the attention inside the chunk.
    """
    b, h, n, dk = q.shape
    dv, m, c = v.shape[-1], n // chunk, chunk
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


def transitions(w: Tensor, ends: Tensor, kept: Tensor) -> Tensor:
    """Returns the transition of every chunk, [..., dk, dk], from the results of `chunked`."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return kept * eye - ends @ w


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Runs the gated delta rule over whole chunks.

    q, k [B, H, n, dk] with unit keys and scaled queries, v [B, H, n, dv], log
    decays g and strengths beta [B, H, n], state [B, H, dk, dv]; n a multiple of
    chunk. Returns the outputs [B, H, n, dv] and the state after the last token.
    """
    b, h, n, dk = q.shape
    u, w, q, k, kept, within = chunked(q, k, v, g, beta, chunk)
    s = q.new_zeros(b, h, dk, v.shape[-1]) if state is None else state
    walk = by_transitions if q.device.type == "cuda" else by_writes
    before, news, s = walk(u, w, k, kept, s)
    out = q @ before + within @ news
    return out.reshape(b, h, n, v.shape[-1]), s


def by_writes(
    u: Tensor, w: Tensor, k: Tensor, kept: Tensor, s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the states before the chunks, what each chunk writes, and the last state, with the
    fewest operations."""
    before, news = [], []
    # unbind, because the gradient of indexing fills a whole tensor with zeros for every chunk.
    for u_i, w_i, k_i, kept_i in zip(*(t.unbind(2) for t in (u, w, k, kept)), strict=True):
        before.append(s)
        news.append(u_i - w_i @ s)
        s = s * kept_i + k_i @ news[-1]
    return torch.stack(before, 2), torch.stack(news, 2), s


def by_transitions(
    u: Tensor, w: Tensor, k: Tensor, kept: Tensor, s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the same as by_writes, with the fewest kernel launches."""
    b, h = s.shape[:2]
    moves, writes = transitions(w, k, kept), k @ u
    starts = Starts.apply(moves.flatten(0, 1), writes.flatten(0, 1), s.flatten(0, 1))
    before = starts[:-1].unflatten(1, (b, h)).permute(1, 2, 0, 3, 4)
    return before, u - w @ before, starts[-1].unflatten(0, (b, h))


class DeltaNet(nn.Module):
    def __init__(self, c: Config, chunk: int):
        super().__init__()
        self.c = c
        self.chunk = chunk
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
        """Returns q, k, v, g and beta of every value head, [B, H, n, ...]."""
        c = self.c
        mixed = self.conv1d(self.in_proj_qkv(x).float())
        q, k, v = mixed.split([self.keys, self.keys, self.values], -1)
        per = c.linear_num_value_heads // c.linear_num_key_heads
        q = unit(q.unflatten(-1, (-1, c.linear_key_head_dim))) * c.linear_key_head_dim**-0.5
        k = unit(k.unflatten(-1, (-1, c.linear_key_head_dim)))
        if per > 1:
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
        pad = -n % self.chunk
        x = F.pad(x, (0, 0, 0, pad))
        out, _ = delta_rule(*self.prepare(x), chunk=self.chunk)
        return self.finish(out, x)[:, :n]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first 2 * cos.shape[-1] dims of heads."""
    r = 2 * cos.shape[-1]
    a, b, rest = x[..., : r // 2], x[..., r // 2 : r], x[..., r:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def causal(q: Tensor, k: Tensor, v: Tensor, rotary: int, theta: float) -> Tensor:
    """Returns causal attention of queries [B, n, H, d] with rope on `rotary` dims, in v's dtype."""
    turn = theta ** (-torch.arange(0, rotary, 2, device=v.device) / rotary)
    angle = torch.arange(v.shape[1], device=v.device)[:, None, None] * turn
    cos, sin = angle.cos(), angle.sin()
    q, k = (rotate(t, cos, sin).to(v.dtype).transpose(1, 2) for t in (q, k))
    per = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(per, 1), v.transpose(1, 2).repeat_interleave(per, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


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

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * c.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (-1, c.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, c.head_dim))
        out = causal(self.q_norm(q), self.k_norm(k), v, c.rotary_dim, c.rope_theta)
        return self.o_proj(out.flatten(-2) * gate.flatten(-2).sigmoid())


class Mlp(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, c.intermediate_size)
        self.up_proj = Linear(c.hidden_size, c.intermediate_size)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, index: int, chunk: int):
        super().__init__()
        self.full = c.is_full(index)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c, chunk)
        self.mlp = Mlp(c)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    @property
    def mixer(self) -> nn.Module:
        return self.self_attn if self.full else self.linear_attn

    def forward(self, x: Tensor, compute: torch.dtype) -> Tensor:
        x = x + self.mixer(self.input_layernorm(x).to(compute)).float()
        return x + self.mlp(self.post_attention_layernorm(x).to(compute)).float()


class Body(nn.Module):
    def __init__(self, c: Config, chunk: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i, chunk) for i in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class Model(nn.Module):
    """A causal language model with tied embeddings."""

    def __init__(self, c: Config, compute: torch.dtype = torch.float32, chunk: int = CHUNK):
        super().__init__()
        self.c = c
        self.compute = compute
        self.model = c.body(chunk)

    def hidden(self, ids: Tensor) -> Tensor:
        """Returns the normed output of the last layer for ids [B, n]: [B, n, hidden], float32."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.compute)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.to(self.compute), self.model.embed_tokens.weight.to(self.compute))

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids)).float()


Decays = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""A_log and dt_bias of the given number of heads of a layer."""


def spans(heads: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns decays for memories of 8 to 2,000 tokens, the same in every layer."""
    memory = torch.logspace(math.log10(8), math.log10(2000), heads)
    return torch.log(1 / (memory * math.log(2))), torch.zeros(heads)


def sampled(heads: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns decays as flash-linear-attention draws them: A uniform from 0 to 16, dt log-uniform
    from 0.001 to 0.1."""
    a = torch.rand(heads, generator=rng) * 16
    lo, hi = math.log(0.001), math.log(0.1)
    dt = (torch.rand(heads, generator=rng) * (hi - lo) + lo).exp()
    return a.clamp_min(1e-4).log(), dt + torch.log(-torch.expm1(-dt))


def initialise(model: Model, seed: int, decays: Decays = spans) -> None:
    """Sets small normal weights, and the decays of linear layers' heads by `decays`."""
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
        for layer in model.model.layers:
            if not layer.full:
                heads = layer.mixer
                a_log, dt_bias = decays(heads.A_log.numel(), rng)
                heads.A_log.copy_(a_log)
                heads.dt_bias.copy_(dt_bias)


def widened(net: Model, width: int) -> Model:
    """Returns a model of the same function whose linear heads have `width` dims; new dims are zero.

    Engines have kernels for some widths only. Keys and queries are normalised, so zeros do
    not change them. Queries are scaled by width^-1/2, and the norm of a head's output takes
    its mean over more channels. Each of these two changes shrinks the mean square, to which
    eps is added, by old / width. So eps is multiplied by both factors, and the norm's weight
    corrects the remaining factor. (In the other norms eps is far below the mean square.)
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
    tensors = {
        n: p.detach().to("cpu", torch.bfloat16).contiguous() for n, p in model.state_dict().items()
    }
    new = folder / "model.safetensors.new"
    save_file(tensors, new, metadata={"format": "pt"})
    os.replace(new, folder / "model.safetensors")
    (folder / "config.json").write_text(model.c.to_json())


def load(folder: Path, kind: type[Config] = Config) -> Model:
    """Returns the model of a folder written by save, in float32; `kind` is its configuration."""
    from safetensors.torch import load_file

    model = Model(kind.read(folder))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({n: t.float() for n, t in tensors.items()})
    return model
