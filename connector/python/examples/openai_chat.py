"""The OpenAI client with a vLLM server that has the connector.

    python openai_chat.py [URL]                       # pip install openai

Asks one question twice, with its documents in another order. The client does not know about
segments: the server finds them (its setting `find`). With TOKENIZER set to the model's directory
the requests name their cuts themselves, which needs spliced-connector and transformers.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI

ASKED = "question : in which month was the employer of Ulla founded ? answer :"


def messages(notes: list[str]) -> list[dict[str, object]]:
    parts = [{"type": "text", "text": f"{text}\n\n"} for text in (*notes, ASKED)]
    read = "read the notes in the order of time and answer the question ."
    return [{"role": "system", "content": read}, {"role": "user", "content": parts}]


def cuts(said: list[dict[str, object]]) -> dict[str, object]:
    """Returns the cuts of a client that knows where its documents are; nothing by default."""
    directory = os.environ.get("TOKENIZER")
    if not directory:
        return {}
    from transformers import AutoTokenizer

    from spliced_connector import cuts as cuts_of

    tokenizer = AutoTokenizer.from_pretrained(directory)
    named = cuts_of(said, tokenizer)
    return {"kv_transfer_params": {"spliced": {"v": 1, "cuts": named}}} if named else {}


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    notes = (Path(__file__).parent / "notes.txt").read_text().strip().split("\n\n")
    for order in (notes, notes[4:] + notes[:4]):
        said = messages(order)
        reply = client.chat.completions.create(
            model=model,
            messages=said,  # type: ignore[arg-type]
            max_tokens=2,
            temperature=0,
            extra_body=cuts(said),
        )
        print("answer:", (reply.choices[0].message.content or "").strip())
        if reply.usage is not None:
            details = reply.usage.prompt_tokens_details  # --enable-prompt-tokens-details
            cached = details.cached_tokens if details is not None else "?"
            print("prompt tokens:", reply.usage.prompt_tokens, "of them not computed:", cached)
        told = (reply.model_extra or {}).get("kv_transfer_params")
        print("the connector:", (told or {}).get("spliced"))


if __name__ == "__main__":
    main()
