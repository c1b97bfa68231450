#!/usr/bin/env bash
# Asking a tokenizer of transformers that is written in Python (as Kimi's is) for the place of each
# token in the text, with return_offsets_mapping=True.
#
# Seen with transformers 5.19.0: the argument is accepted and ignored, and the answer has no
# offset_mapping; with earlier releases it was an error. Whoever needs the places has to look at
# is_fast first.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check transformers==5.19.0
env/bin/python - 2>/dev/null <<'EOF' | tee out
from transformers import ByT5Tokenizer

tokenizer = ByT5Tokenizer()
print("is_fast", tokenizer.is_fast)
try:
    print(sorted(tokenizer("a passage", return_offsets_mapping=True)))
except NotImplementedError:
    print("NotImplementedError")
EOF
diff out - <<'EOF'
is_fast False
['attention_mask', 'input_ids']
EOF
echo "as found"
