"""Golden logits for the reference engine, from a second implementation.

Draws a tiny dense Qwen3-Next model, writes its config.json and weights, and
computes logits in float64 with plain numpy, one token after another, from the
published description of the architecture:

    python3 scripts/qwen3next/golden.py scripts/lab/refengine/testdata/qwen3next

It shares no code or layout with the Go engine: it uses tensors with the names
and shapes of the file.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

CONFIG = {
    "model_type": "qwen3_next",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
}
TOKENS = 50
SEED = 5


def shapes(c):
    d, ff = c["hidden_size"], c["intermediate_size"]
    hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    heads, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], d)}
    for i, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = (d,)
        out[p + "post_attention_layernorm.weight"] = (d,)
        out[p + "mlp.gate_proj.weight"] = (ff, d)
        out[p + "mlp.up_proj.weight"] = (ff, d)
        out[p + "mlp.down_proj.weight"] = (d, ff)
        if kind == "linear_attention":
            p += "linear_attn."
            out[p + "in_proj_qkvz.weight"] = (2 * hk * dk + 2 * hv * dv, d)
            out[p + "in_proj_ba.weight"] = (2 * hv, d)
            out[p + "conv1d.weight"] = (2 * hk * dk + hv * dv, 1, c["linear_conv_kernel_dim"])
            out[p + "dt_bias"] = (hv,)
            out[p + "A_log"] = (hv,)
            out[p + "norm.weight"] = (dv,)
            out[p + "out_proj.weight"] = (d, hv * dv)
        else:
            p += "self_attn."
            out[p + "q_proj.weight"] = (2 * heads * hd, d)
            out[p + "k_proj.weight"] = (kv * hd, d)
            out[p + "v_proj.weight"] = (kv * hd, d)
            out[p + "q_norm.weight"] = (hd,)
            out[p + "k_norm.weight"] = (hd,)
            out[p + "o_proj.weight"] = (d, heads * hd)
    out["model.norm.weight"] = (d,)
    out["lm_head.weight"] = (c["vocab_size"], d)
    return out


def bf16_bits(x):
    """Returns the upper halves of float32 values; truncation makes the weights exact in bf16."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype("<u2")


def draw(c):
    rng = np.random.default_rng(SEED)
    weights = {}
    for name, shape in shapes(c).items():
        x = rng.normal(size=shape)
        if name.endswith(("_proj.weight", "qkvz.weight", "ba.weight", "lm_head.weight")):
            x /= np.sqrt(shape[-1])
        elif name.endswith("norm.weight"):
            x = 0.2 * x + (1.0 if "linear_attn.norm" in name else 0.0)
        elif name.endswith("dt_bias"):
            x = x - 2
        weights[name] = bf16_bits(x)
    return weights


def write_safetensors(path, weights):
    header, at = {}, 0
    for name, bits in weights.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(b.tobytes() for b in weights.values()))


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x) + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model:
    def __init__(self, c, weights):
        self.c = c
        self.w = {n: (b.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for n, b in weights.items()}
        self.history = [[] for _ in c["layer_types"]]  # conv inputs or (k, v) per token
        self.state = [None] * len(c["layer_types"])

    def norm(self, x, name):
        return rms(x, self.c["rms_norm_eps"]) * (1 + self.w[name])

    def token(self, t, position):
        x = self.w["model.embed_tokens.weight"][t]
        for i, kind in enumerate(self.c["layer_types"]):
            p = f"model.layers.{i}."
            h = self.norm(x, p + "input_layernorm.weight")
            x = x + (self.linear(h, i) if kind == "linear_attention" else self.attention(h, i, position))
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate = self.w[p + "mlp.gate_proj.weight"] @ h
            x = x + self.w[p + "mlp.down_proj.weight"] @ (gate * sigmoid(gate) * (self.w[p + "mlp.up_proj.weight"] @ h))
        return self.w["lm_head.weight"] @ self.norm(x, "model.norm.weight")

    def linear(self, h, i):
        c, p = self.c, f"model.layers.{i}.linear_attn."
        hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        r = hv // hk
        # Rows of the input projections are grouped by key head.
        qkvz = (self.w[p + "in_proj_qkvz.weight"] @ h).reshape(hk, 2 * dk + 2 * r * dv)
        q, k, v, z = np.split(qkvz, [dk, 2 * dk, 2 * dk + r * dv], axis=1)
        b, a = np.split((self.w[p + "in_proj_ba.weight"] @ h).reshape(hk, 2 * r), 2, axis=1)
        z, b, a = z.reshape(hv, dv), b.reshape(hv), a.reshape(hv)
        taps = self.w[p + "conv1d.weight"][:, 0, :]
        self.history[i].append(np.concatenate([q.ravel(), k.ravel(), v.ravel()]))
        seen = self.history[i][-taps.shape[1] :]
        mixed = sum(taps[:, taps.shape[1] - len(seen) + j] * row for j, row in enumerate(seen))
        mixed = mixed * sigmoid(mixed)
        q, k, v = np.split(mixed, [hk * dk, 2 * hk * dk])
        q, k, v = q.reshape(hk, dk), k.reshape(hk, dk), v.reshape(hv, dv)
        q = q / np.sqrt((q * q).sum(1, keepdims=True) + 1e-6) / np.sqrt(dk)
        k = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
        beta = sigmoid(b)
        decay = np.exp(-np.exp(self.w[p + "A_log"]) * np.log1p(np.exp(a + self.w[p + "dt_bias"])))
        if self.state[i] is None:
            self.state[i] = np.zeros((hv, dk, dv))
        out = []
        for n in range(hv):
            s = self.state[i][n]
            s *= decay[n]
            s += np.outer(k[n // r], beta[n] * (v[n] - k[n // r] @ s))
            o = q[n // r] @ s
            out.append(self.w[p + "norm.weight"] * rms(o, c["rms_norm_eps"]) * z[n] * sigmoid(z[n]))
        return self.w[p + "out_proj.weight"] @ np.concatenate(out)

    def rope(self, x, position):
        c = self.c["rope_parameters"]
        n = int(len(x) * c["partial_rotary_factor"])
        angle = position * c["rope_theta"] ** (-np.arange(0, n, 2) / n)
        first, second, rest = x[: n // 2], x[n // 2 : n], x[n:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest])

    def attention(self, h, i, position):
        c, p = self.c, f"model.layers.{i}.self_attn."
        heads, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        qg = (self.w[p + "q_proj.weight"] @ h).reshape(heads, 2 * hd)
        k = (self.w[p + "k_proj.weight"] @ h).reshape(kv, hd)
        v = (self.w[p + "v_proj.weight"] @ h).reshape(kv, hd)
        k = np.stack([self.rope(self.norm(x, p + "k_norm.weight"), position) for x in k])
        self.history[i].append((k, v))
        out = []
        for n in range(heads):
            q = self.rope(self.norm(qg[n, :hd], p + "q_norm.weight"), position)
            g = n // (heads // kv)
            score = np.array([q @ past[0][g] for past in self.history[i]]) / np.sqrt(hd)
            weight = np.exp(score - score.max())
            weight /= weight.sum()
            o = sum(x * past[1][g] for x, past in zip(weight, self.history[i], strict=True))
            out.append(o * sigmoid(qg[n, hd:]))
        return self.w[p + "o_proj.weight"] @ np.concatenate(out)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    weights = draw(CONFIG)
    tokens = np.random.default_rng(SEED + 1).integers(0, CONFIG["vocab_size"], TOKENS).tolist()
    model = Model(CONFIG, weights)
    logits = [model.token(t, i) for i, t in enumerate(tokens)][-1]
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    write_safetensors(out / "model.safetensors", weights)
    golden = {"tokens": tokens, "logits": [float(f"{x:.15g}") for x in logits]}
    (out / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
