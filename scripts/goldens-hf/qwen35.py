"""Golden logits for the reference engine, from transformers.

Draws a tiny dense Qwen3.5 model for text, writes its config.json and weights as
bfloat16, and computes the logits after the last token in float32 on the CPU:

    python3 scripts/goldens-hf/qwen35.py scripts/lab/refengine/testdata/qwen35

Needs torch, transformers and safetensors; the versions go into golden.json.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": True,
}
TOKENS = 70  # more than one chunk of the library's recurrence
SEED = 11


def draw(model: torch.nn.Module) -> None:
    """Sets weights that exercise every part: decays are spread, and norms differ from one."""
    generator = torch.Generator().manual_seed(SEED)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("A_log"):
            p.data = 0.3 * noise
        elif name.endswith("dt_bias"):
            p.data = noise - 3
        elif p.dim() == 1:
            p.data = p.data + 0.2 * noise
        elif name.endswith("embed_tokens.weight"):
            p.data = noise
        else:
            p.data = noise / p.shape[-1] ** 0.5
        p.data = p.data.bfloat16().float()


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model(**CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draw(model)
    tensors = {
        name: value.bfloat16().contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    # Compute with the values in the file.
    model.load_state_dict(
        {k: v.float() for k, v in load_file(out / "model.safetensors").items()}, strict=False
    )
    tokens = torch.randint(256, (TOKENS,), generator=torch.Generator().manual_seed(SEED + 1))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, -1]
    golden = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "tokens": tokens.tolist(),
        "logits": [float(f"{x:.9g}") for x in logits.tolist()],
    }
    (out / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
