"""Chat templates in the manner of today's models: what they show around a conversation, and which
marks begin a part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from toy_tokenizers import WordTokenizer

Message = Mapping[str, object]
Given = Mapping[str, object]
_INSTRUCTIONS = "Answer politely."


@dataclass(frozen=True)
class Style:
    """A template, and what is to be learnt of it."""

    name: str
    added: str
    render: Callable[[Sequence[Message], Given], str]
    begins: set[str]
    ends: set[str]

    def tokenizer(self) -> WordTokenizer:
        """The tokenizer of a model with that template."""
        return WordTokenizer(tuple(self.added.split()), self.render)


def _role(message: Message) -> str:
    return cast(str, message["role"])


def _text(message: Message) -> str:
    return cast(str, message["content"])


def _arguments(message: Message) -> list[str]:
    """The argument of each call."""
    calls = cast("Sequence[Mapping[str, Mapping[str, Mapping[str, str]]]]", message["tool_calls"])
    return [call["function"]["arguments"]["at"] for call in calls]


def _calls(message: Message, form: str, between: str = "\n") -> str:
    """The calls of a message, in a form with a place for the argument."""
    given = _arguments(message) if "tool_calls" in message else []
    return between.join(form.format(one) for one in given)


def _follows(messages: Sequence[Message], i: int, role: str) -> bool:
    return 0 <= i < len(messages) and _role(messages[i]) == role


_CALL = '<tool_call>\n{{"name": "look", "at": "{}"}}\n</tool_call>'


def _shown(messages: Sequence[Message], given: Given) -> str:
    """Qwen, Hermes, Nemotron: the instructions for tools show a call, behind a default system."""
    system = _text(messages[0]) if _follows(messages, 0, "system") else _INSTRUCTIONS
    tools = ""
    if given.get("tools"):
        tools = f"\n<tools>\n{given['tools']}\n</tools>\nCall like this:\n" + _CALL.format("here")
    out = f"<|im_start|>system\n{system}{tools}<|im_end|>\n"
    for i, message in enumerate(messages):
        if _role(message) == "tool":
            first, last = (not _follows(messages, j, "tool") for j in (i - 1, i + 1))
            out += "<|im_start|>user" if first else ""
            out += f"\n<tool_response>\n{_text(message)}\n</tool_response>"
            out += "<|im_end|>\n" if last else ""
        elif _role(message) != "system":
            thought = "<think>\n\n</think>\n\n" if i == len(messages) - 1 else ""
            thought = thought if _role(message) == "assistant" else ""
            out += f"<|im_start|>{_role(message)}\n{thought}{_text(message)}"
            out += f"{_calls(message, _CALL)}<|im_end|>\n"
    return out + ("<|im_start|>assistant\n" if given["add_generation_prompt"] else "")


_KEYED = "<tool_call>look<arg_key>at</arg_key><arg_value>{}</arg_value></tool_call>"


def _unclosed(messages: Sequence[Message], given: Given) -> str:
    """GLM: messages end where the next begins; arguments have marks, which instructions show."""
    out = "<sop>"
    if given.get("tools"):
        out += f"<|system|>\nTools: {given['tools']}\n{_KEYED.format('here')}"
    for i, message in enumerate(messages):
        if _role(message) == "tool":
            out += "" if _follows(messages, i - 1, "tool") else "<|observation|>"
            out += f"\n<tool_response>{_text(message)}</tool_response>"
        elif _role(message) == "assistant":
            out += f"<|assistant|>\n<think></think>\n{_text(message)}{_calls(message, _KEYED)}"
        else:
            out += f"<|{_role(message)}|>\n{_text(message)}"
    return out + ("<|assistant|>" if given["add_generation_prompt"] else "")


def _roles(messages: Sequence[Message], given: Given) -> str:
    """Ling: the role stands between two marks, and every prompt has a system message."""
    system = _text(messages[0]) if _follows(messages, 0, "system") else "thinking off"
    shown = f"\n{given['tools']}\n{_KEYED.format('here')}" if given.get("tools") else ""
    out = f"<role>SYSTEM</role>{system}{shown}<|role_end|>"
    for i, message in enumerate(messages):
        if _role(message) == "tool":
            out += "" if _follows(messages, i - 1, "tool") else "<role>OBSERVATION</role>"
            out += f"\n<tool_response>\n{_text(message)}\n</tool_response>"
            out += "" if _follows(messages, i + 1, "tool") else "<|role_end|>"
        elif _role(message) != "system":
            out += f"<role>{_role(message).upper()}</role>{_text(message)}"
            out += f"{_calls(message, _KEYED)}<|role_end|>"
    return out + ("<role>ASSISTANT</role>" if given["add_generation_prompt"] else "")


def _granite(messages: Sequence[Message], given: Given) -> str:
    """Granite 4: a header of two marks; a message ends with the mark that ends a text."""
    out = ""
    if given.get("tools"):
        out += "<|start_of_role|>system<|end_of_role|>You have <tools> tools </tools>, call them"
        out += f" within <tool_call></tool_call>: {given['tools']}<|end_of_text|>\n"
    for message in messages:
        shown = _text(message) + _calls(message, _CALL)
        if _role(message) == "tool":
            shown = f"<tool_response>\n{shown}\n</tool_response>"
        role = "user" if _role(message) == "tool" else _role(message)
        out += f"<|start_of_role|>{role}<|end_of_role|>{shown}<|end_of_text|>\n"
    ask = given["add_generation_prompt"]
    return out + ("<|start_of_role|>assistant<|end_of_role|>" if ask else "")


def _nested(messages: Sequence[Message], given: Given) -> str:
    """Kimi K3: everything opens and closes with the same marks, and both share one."""

    def open_(name: str) -> str:
        return f"<|open|>{name}<|sep|>"

    def close(name: str) -> str:
        return f"<|close|>{name}<|sep|>"

    def whole(role: str, shown: str) -> str:
        return f"{open_(f'message {role}')}{shown}{close('message')}<|end_of_msg|>"

    out = whole("system", _INSTRUCTIONS)
    out += whole("tools", str(given["tools"])) if given.get("tools") else ""
    for message in messages:
        shown = _text(message)
        if _role(message) == "assistant":
            answer = open_("response") + shown + close("response")
            call = f"{open_('call')}{open_('argument')}{{}}{close('argument')}{close('call')}"
            called = _calls(message, call, "")
            shown = open_("think") + close("think") + answer
            shown += open_("tools") + called + close("tools") if called else ""
        out += whole(_role(message), shown)
    return out + (open_("message assistant") if given["add_generation_prompt"] else "")


def _brackets(messages: Sequence[Message], given: Given) -> str:
    """MiniMax: marks that look like none, a default system, calls within a mark of their own."""
    call = '<invoke name="look"><parameter name="at">{}</parameter></invoke>'
    system = _text(messages[0]) if _follows(messages, 0, "system") else _INSTRUCTIONS
    if given.get("tools"):
        system += f"\n{given['tools']}\n<tool_call>\n{call.format('here')}\n</tool_call>"
    out = f"]~!b[]~b]system\n{system}[e~[\n"
    for i, message in enumerate(messages):
        if _role(message) == "tool":
            out += "" if _follows(messages, i - 1, "tool") else "]~b]tool"
            out += f"\n<response>{_text(message)}</response>"
            out += "" if _follows(messages, i + 1, "tool") else "[e~[\n"
        elif _role(message) != "system":
            called = _calls(message, call)
            shown = _text(message) + (f"<tool_call>\n{called}\n</tool_call>" if called else "")
            out += f"]~b]{_role(message)}\n{shown}[e~[\n"
    return out + ("]~b]assistant\n" if given["add_generation_prompt"] else "")


def _harmony(messages: Sequence[Message], given: Given) -> str:
    """gpt-oss: a default system in front, one call in a message, three marks that end one."""
    out = f"<|start|>system<|message|>{_INSTRUCTIONS}<|end|>"
    if given.get("tools") or _follows(messages, 0, "system"):
        own = _text(messages[0]) if _follows(messages, 0, "system") else ""
        out += f"<|start|>developer<|message|>{own}{given.get('tools', '')}<|end|>"
    for i, message in enumerate(messages):
        if _role(message) == "user":
            out += f"<|start|>user<|message|>{_text(message)}<|end|>"
        elif _role(message) == "tool":
            out += "<|start|>functions.look to=assistant<|channel|>commentary<|message|>"
            out += f"{_text(message)}<|end|>"
        elif _role(message) == "assistant" and "tool_calls" in message:
            out += "<|start|>assistant to=functions.look<|channel|>commentary<|message|>"
            out += f"{_arguments(message)[0]}<|call|>"
        elif _role(message) == "assistant":
            out += f"<|start|>assistant<|channel|>final<|message|>{_text(message)}"
            out += "<|return|>" if i == len(messages) - 1 else "<|end|>"
    return out + ("<|start|>assistant" if given["add_generation_prompt"] else "")


def _sided(messages: Sequence[Message], given: Given) -> str:
    """Apertus: marks by role, a developer's message behind the system's, and tools that answer
    within the assistant's message."""
    system = _text(messages[0]) if _follows(messages, 0, "system") else _INSTRUCTIONS
    out = f"<s><|system_start|>{system}<|system_end|>"
    out += f"<|developer_start|>{given.get('tools', 'none')}<|developer_end|>"
    open_ = False
    for message in messages:
        if _role(message) == "user":
            out += "<|assistant_end|>" if open_ else ""
            out += f"<|user_start|>{_text(message)}<|user_end|>"
            open_ = False
        elif _role(message) == "assistant":
            called = _calls(message, "{}", ", ")
            out += "" if open_ else "<|assistant_start|>"
            out += _text(message)
            out += f"<|tools_prefix|>[{called}]<|tools_suffix|>" if called else ""
            open_ = True
        elif _role(message) == "tool":
            out += f"[{_text(message)}]"
    return out + ("<|assistant_start|>" if given["add_generation_prompt"] else "")


def _instructed(messages: Sequence[Message], given: Given) -> str:
    """Command R: instructions behind the conversation, whoever spoke last."""
    out = "<BOS>"
    for message in messages:
        shown = _text(message) + _calls(message, "look {}")
        out += f"<|START_OF_TURN|><|{_role(message)}|>{shown}<|END_OF_TURN|>"
    out += f"<|START_OF_TURN|><|system|>{_INSTRUCTIONS}<|END_OF_TURN|>"
    return out + ("<|START_OF_TURN|><|assistant|>" if given["add_generation_prompt"] else "")


def _mistral(messages: Sequence[Message], given: Given) -> str:
    """Mistral: users in brackets, a system with an end that nothing else has, tools before the last
    user, nothing to ask with."""
    out = "<s>"
    last = max((i for i, one in enumerate(messages) if _role(one) == "user"), default=-1)
    for i, message in enumerate(messages):
        if _role(message) == "system":
            out += f"[SYSTEM_PROMPT]{_text(message)}[/SYSTEM_PROMPT]"
        elif _role(message) == "user":
            shown = given.get("tools") and i == last
            out += f"[AVAILABLE_TOOLS]{given['tools']}[/AVAILABLE_TOOLS]" if shown else ""
            out += f"[INST]{_text(message)}[/INST]"
        elif _role(message) == "tool":
            out += f"[TOOL_RESULTS]{_text(message)}[/TOOL_RESULTS]"
        else:
            called = _calls(message, "[TOOL_CALLS]look{}", "")
            out += f"{_text(message)}{called}</s>"
    return out


def _open_ended(messages: Sequence[Message], given: Given) -> str:
    """Apriel: only answers end, and the last one does not."""
    out = f"<|begin_system|>\n{_INSTRUCTIONS}\n"
    for i, message in enumerate(messages):
        out += f"<|begin_{_role(message)}|>\n{_text(message)}{_calls(message, '{}')}\n"
        out += "<|end|>\n" if _role(message) == "assistant" and i < len(messages) - 1 else ""
    return out + ("<|begin_assistant|>\n" if given["add_generation_prompt"] else "")


def _always(messages: Sequence[Message], given: Given) -> str:
    """ChatML that begins an answer unasked, behind a default system."""
    out = f"<|im_start|>system\n{_INSTRUCTIONS}<|im_end|>\n"
    for message in messages:
        out += f"<|im_start|>{_role(message)}\n{_text(message)}{_calls(message, '{}')}<|im_end|>\n"
    return out + "<|im_start|>assistant\n"


_TAGS = "<tool_call> </tool_call> <tool_response> </tool_response>"
_KEYS = "<arg_key> </arg_key> <arg_value> </arg_value>"
_TOOLS = {"<tool_call>", "<tool_response>"}

STYLES = (
    Style(
        "shown",
        f"<|im_start|> <|im_end|> <tools> </tools> <think> </think> {_TAGS}",
        _shown,
        {"<|im_start|>", *_TOOLS},
        set(),
    ),
    Style(
        "unclosed",
        f"<sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> {_TAGS} {_KEYS}",
        _unclosed,
        {"<|user|>", "<|assistant|>", "<|observation|>", *_TOOLS},
        set(),
    ),
    Style(
        "roles",
        f"<role> </role> <|role_end|> {_TAGS} {_KEYS}",
        _roles,
        {"<role>", *_TOOLS},
        set(),
    ),
    Style(
        "granite",
        f"<|start_of_role|> <|end_of_role|> <|end_of_text|> <tools> </tools> {_TAGS}",
        _granite,
        {"<|start_of_role|>", "<tool_call>"},
        set(),
    ),
    Style("nested", "<|open|> <|sep|> <|close|> <|end_of_msg|>", _nested, {"<|open|>"}, set()),
    Style("brackets", "]~!b[ ]~b] [e~[ <tool_call> </tool_call>", _brackets, {"]~b]"}, set()),
    Style(
        "harmony",
        "<|start|> <|end|> <|message|> <|channel|> <|return|> <|call|>",
        _harmony,
        {"<|start|>"},
        set(),
    ),
    Style(
        "sided",
        "<s> <|system_start|> <|system_end|> <|developer_start|> <|developer_end|> <|user_start|>"
        " <|user_end|> <|assistant_start|> <|assistant_end|> <|tools_prefix|> <|tools_suffix|>",
        _sided,
        {"<|user_start|>", "<|assistant_start|>"},
        {"<|tools_suffix|>"},
    ),
    Style(
        "instructed",
        "<BOS> <|START_OF_TURN|> <|END_OF_TURN|> <|system|> <|user|> <|assistant|> <|tool|>",
        _instructed,
        {"<|START_OF_TURN|>"},
        set(),
    ),
    Style(
        "mistral",
        "<s> </s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS]"
        " [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]",
        _mistral,
        {"[INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"},
        {"[/INST]", "[/TOOL_RESULTS]"},
    ),
    Style(
        "open-ended",
        "<|begin_system|> <|begin_user|> <|begin_assistant|> <|begin_tool|> <|end|>",
        _open_ended,
        {"<|begin_user|>", "<|begin_assistant|>", "<|begin_tool|>"},
        set(),
    ),
    Style("always", "<|im_start|> <|im_end|>", _always, {"<|im_start|>"}, set()),
)
