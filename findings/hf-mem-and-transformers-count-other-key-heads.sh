#!/usr/bin/env bash
# A config.json without num_key_value_heads, read by two packages.
#
# Seen with transformers 5.19.0 and hf-mem 0.5.6: transformers takes the default of the model's
# class, a number that does not depend on num_attention_heads: 32 for Qwen2, so that 28 attention
# heads get more key-value heads than they are, 8 for Mistral. Only Llama's class takes
# num_attention_heads, as hf-mem does for every model. Its estimate of a cache of keys and values
# is then half of what the model needs, or four times as much.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check transformers==5.19.0 hf-mem==0.5.6
env/bin/python - 2>/dev/null <<'EOF' | tee out
import json

from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
from transformers import AutoConfig

for model_type, heads in ("qwen2", 28), ("qwen2", 16), ("mistral", 32), ("llama", 32):
    config = {
        "model_type": model_type,
        "num_hidden_layers": 1,
        "hidden_size": 128 * heads,
        "num_attention_heads": heads,
        "sliding_window": None,
    }
    json.dump(config, open("config.json", "w"))
    read = AutoConfig.from_pretrained(".")
    estimate = compute_safetensors_kv_cache_size(config, "BF16", max_model_len=1)
    needed = 2 * read.num_key_value_heads * 128 * 2
    print(
        f"{model_type} with {heads} heads: transformers {read.num_key_value_heads} key-value heads,"
        f" {needed} bytes a token; hf-mem {estimate}"
    )
EOF
diff out - <<'EOF'
qwen2 with 28 heads: transformers 32 key-value heads, 16384 bytes a token; hf-mem 14336
qwen2 with 16 heads: transformers 32 key-value heads, 16384 bytes a token; hf-mem 8192
mistral with 32 heads: transformers 8 key-value heads, 4096 bytes a token; hf-mem 16384
llama with 32 heads: transformers 32 key-value heads, 16384 bytes a token; hf-mem 16384
EOF
echo "as found"
