"""Answers of transformers with the trained model, for the demo and its tests.

Reads questions as scripts/tinyhybrid/generate.py prints them, lets the model in
DIR answer each of them in float32 on the CPU, and prints the file that the Go side reads
as DIR/questions.jsonl:

    cd scripts/tinyhybrid
    python generate.py -n 40 -k 6,7,8 --corpus 32 | python ../goldens-hf/questions.py model > new
    mv new model/questions.jsonl

Needs torch and transformers. Prints the number of right answers to standard error.
"""

import json
import sys

import torch
import transformers

MAX_ANSWER = 6


def answer(model: transformers.PreTrainedModel, ids: list[int], end: int) -> list[int]:
    """Returns greedy tokens after a prompt, without the token `end` that ends the answer."""
    said = model.generate(torch.tensor([ids]), max_new_tokens=MAX_ANSWER, do_sample=False)
    out = said[0, len(ids) :].tolist()
    return out[: out.index(end)] if end in out else out


def main() -> None:
    torch.set_num_threads(1)
    folder = sys.argv[1]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = right = 0
    with torch.no_grad():
        for line in sys.stdin:
            q = json.loads(line)
            ids = [token for segment in q["segments"] for token in segment]
            said = answer(model, ids, model.config.eos_token_id)
            kept = {name: q[name] for name in ("seed", "kind", "segments", "answer")}
            print(json.dumps({**kept, "transformers": said}, separators=(",", ":")))
            asked += 1
            right += said == q["answer"]
    print(f"{right} of {asked} right", file=sys.stderr)


if __name__ == "__main__":
    main()
