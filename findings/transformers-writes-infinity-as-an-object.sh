#!/usr/bin/env bash
# The config.json that transformers writes for Nemotron-H, read by a plain JSON reader.
#
# Seen with transformers 5.19.0: the upper bound of time_step_limit, infinity, is written as the
# object {"__float__": "Infinity"}, which only transformers turns back into a number. Published
# files of older versions have a bare Infinity there, which is no JSON. A reader of configs meets
# both. The file has no num_hidden_layers either: layers are counted by layers_block_type.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check transformers==5.19.0
env/bin/python - 2>/dev/null <<'EOF' | tee out
import json

from transformers import NemotronHConfig

NemotronHConfig().save_pretrained(".")
plain = json.load(open("config.json"))
print("plain:", plain["time_step_limit"], plain.get("num_hidden_layers", "no num_hidden_layers"))
print("transformers:", list(NemotronHConfig.from_pretrained(".").time_step_limit))
EOF
diff out - <<'EOF'
plain: [0.0, {'__float__': 'Infinity'}] no num_hidden_layers
transformers: [0.0, inf]
EOF
echo "as found"
