"""A model with Qwen3.5's layers and seeded random weights. The demo's model has a tokenizer that is
trained on this project's pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

MAX_TOKENS = 8192
VOCABULARY = 4096

_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for call in m['tool_calls'] or [] %}\n{{ call['function'] | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(directory: Path, texts: Iterable[str], layers: int, hidden: int) -> Path:
    """Writes the model to a directory; see `write_weights`."""
    _write_tokenizer(directory, texts)
    write_weights(directory, VOCABULARY, layers, hidden)
    return directory


def write_weights(directory: Path, vocabulary: int, layers: int, hidden: int) -> None:
    """Writes a model in bfloat16, with three layers of gated delta rule per layer of attention.

    With layers 12 and hidden 1024 it has 253 million parameters. The weights are random: times are
    those of a trained model of this shape, answers are meaningless.
    """
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=7 * hidden // 2,
        num_hidden_layers=layers,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        full_attention_interval=4,  # SGLang reads no layer_types
        num_attention_heads=hidden // 128,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=hidden // 64,
        linear_num_value_heads=hidden // 64,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        max_position_embeddings=2 * MAX_TOKENS,
        tie_word_embeddings=True,
        dtype="bfloat16",
        mamba_ssm_dtype="float32",  # states of 16 bits are not stored after answers
    )
    torch.manual_seed(0)
    Qwen3_5ForCausalLM(config).bfloat16().save_pretrained(directory)


def _write_tokenizer(directory: Path, texts: Iterable[str]) -> None:
    """Writes a byte pair tokenizer with the ChatML chat template, trained on the texts."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
