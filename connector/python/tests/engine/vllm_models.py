"""Tiny models of the recurrent families that vLLM serves, with seeded random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LINEAR, FULL = "linear_attention", "full_attention"

# Heads of 64 are the smallest that vLLM's attention takes on a CPU.
BODY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
}
# Weights of convolutions over four tokens are packed for kernels that these layers do not use.
MAMBA1 = {"state_size": 16, "time_step_rank": 5, "conv_kernel": 3, "num_hidden_layers": 2}

IMAGE_TOKENS = {
    "<|image_pad|>": 512,
    "<|video_pad|>": 513,
    "<|vision_start|>": 514,
    "<|vision_end|>": 515,
}


@dataclass(frozen=True)
class Tiny:
    """A class of transformers and the settings that its config gets on top of BODY."""

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """Parts of weights' names that vLLM reads under other ones than transformers writes."""
    kind: str = "ForCausalLM"
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the engine."""
    steps: float = -4.0
    """The mean of the biases that time steps are made of."""

    def save(self, directory: Path, seed: int = 1) -> str:
        """Writes config and weights."""
        import torch
        import transformers
        from safetensors.torch import load_file, save_file

        given = {k: v for k, v in (BODY | dict(self.settings)).items() if k not in self.without}
        config = getattr(transformers, f"{self.name}Config")(**given)
        torch.manual_seed(seed)
        model = getattr(transformers, self.name + self.kind)(config).float()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                noise = torch.randn(weight.shape, generator=generator)
                if name.endswith("A_log"):
                    weight.copy_(noise * 0.5 - 1)
                elif name.endswith(("dt_bias", "dt_proj.bias")):
                    weight.copy_(noise * 0.7 + self.steps)
                elif weight.dim() < 2 or "conv" in name:
                    weight.add_(noise * 0.3)
                else:
                    weight.copy_(noise * 1.5 / weight.shape[-1] ** 0.5)
        model.save_pretrained(directory)
        if "vision_config" in self.settings:
            _save_processor(directory)
        for file in directory.glob("*.safetensors") if self.names else ():
            save_file(
                {self._name(k): v for k, v in load_file(file).items()}, file, {"format": "pt"}
            )
        return str(directory)

    def _name(self, name: str) -> str:
        for theirs, read in self.names.items():
            name = name.replace(theirs, read)
        return name


@dataclass(frozen=True)
class Bailing:
    """Ring and Ling, which transformers does not have: Lightning attention with rope, or KDA, and
    MLA of the one size that vLLM has a CPU kernel for.

    In float32, because they depend on where prefills are cut: Lightning keeps its state in the
    model's type, and MLA computes the context apart.
    """

    settings: Mapping[str, object]
    linear: Mapping[str, tuple[int, ...]]
    """Shapes of a linear layer's weights."""
    options: Mapping[str, object] = field(default_factory=lambda: {"dtype": "float32"})

    def save(self, directory: Path, seed: int = 1) -> str:
        """Writes config and weights."""
        import torch
        from safetensors.torch import save_file

        config = _register({**BAILING, **self.settings})
        config.save_pretrained(directory)
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name, shape in self._shapes().items():
            noise = torch.randn(shape, generator=generator)
            weights[name] = 1 + noise * 0.3 if len(shape) < 2 else noise * 1.5 / shape[-1] ** 0.5
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        return str(directory)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "lm_head.weight": (512, 128),
            "model.word_embeddings.weight": (512, 128),
            "model.norm.weight": (128,),
        }
        full = {
            "attention.q_proj.weight": (256, 128),
            "attention.kv_a_proj_with_mqa.weight": (576, 128),
            "attention.kv_a_layernorm.weight": (512,),
            "attention.kv_b_proj.weight": (256, 512),
            "attention.dense.weight": (128, 128),
        }
        each = {
            "input_layernorm.weight": (128,),
            "post_attention_layernorm.weight": (128,),
            "mlp.gate_proj.weight": (128, 128),
            "mlp.up_proj.weight": (128, 128),
            "mlp.down_proj.weight": (128, 128),
        }
        for layer in range(4):
            for name, shape in (each | (full if layer % 2 else dict(self.linear))).items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        return shapes


BAILING: Mapping[str, object] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "rope_interleave": True,
    "num_experts": 1,
    "first_k_dense_replace": 99,
    "num_experts_per_tok": 1,
    "num_shared_experts": 0,
    "group_norm_size": 1,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def _register(settings: Mapping[str, object]) -> PreTrainedConfig:
    """Lets transformers read the config of a type that it does not have."""
    from transformers import AutoConfig, PreTrainedConfig

    class BailingConfig(PreTrainedConfig):  # type: ignore[misc]
        model_type = "bailing_hybrid"

    AutoConfig.register("bailing_hybrid", BailingConfig, exist_ok=True)
    return BailingConfig(**settings)


def _save_processor(directory: Path) -> None:
    """What vLLM asks of a model that reads images, whatever it is asked."""
    import tokenizers
    import transformers

    words = {f"w{i}": i for i in range(512)} | IMAGE_TOKENS
    model = tokenizers.models.WordLevel(words, unk_token="w0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))
    transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(),
    ).save_pretrained(directory)


TINY: Mapping[str, Tiny | Bailing] = {
    "bailing_2.5": Bailing(
        {"architectures": ["BailingMoeV2_5ForCausalLM"]},
        {
            "attention.query_key_value.weight": (384, 128),
            "attention.g_proj.weight": (128, 128),
            "attention.g_norm.weight": (128,),
            "attention.dense.weight": (128, 128),
        },
    ),
    "bailing_3": Bailing(
        {
            "architectures": ["BailingMoeV3ForCausalLM"],
            "short_conv_kernel_size": 4,
            "no_kda_lora": True,
        },
        {
            **{f"attention.{x}_proj.weight": (128, 128) for x in ("q", "k", "v", "f", "g", "o")},
            **{f"attention.{x}_conv1d.weight": (128, 1, 4) for x in ("q", "k", "v")},
            "attention.b_proj.weight": (2, 128),
            "attention.o_norm.weight": (64,),
            "attention.A_log": (2,),
            "attention.dt_bias": (128,),
        },
    ),
    "nemotron_h": Tiny(
        "NemotronH",
        {
            "hybrid_override_pattern": "M-*M-*M-",
            "head_dim": 64,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 2,
            "chunk_size": 64,
            "n_routed_experts": 4,
            "moe_intermediate_size": 64,
            "moe_shared_expert_intermediate_size": 64,
        },
        without=("num_hidden_layers",),
    ),
    "granite": Tiny(
        "GraniteMoeHybrid",
        MAMBA2
        | {
            "layer_types": [LINEAR, FULL, LINEAR, LINEAR],
            "shared_intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "hidden_size": 128,
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "attention_multiplier": 0.125,
        },
    ),
    "falcon_h1": Tiny("FalconH1", MAMBA2 | {"mamba_d_ssm": 128, "head_dim": 64}),
    "zamba2": Tiny(
        "Zamba2",
        {
            "layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid", "hybrid"],
            "num_hidden_layers": 5,
            "mamba_d_state": 16,
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "chunk_size": 64,
            "num_key_value_heads": 2,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "adapter_rank": 8,
            "use_mem_rope": True,
        },
    ),
    "mamba2": Tiny(
        "Mamba2",
        {
            "num_heads": 4,
            "head_dim": 32,
            "n_groups": 2,
            "state_size": 16,
            "chunk_size": 64,
            "num_hidden_layers": 2,
        },
    ),
    "jamba": Tiny(
        "Jamba",
        {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 3,
            "mamba_dt_rank": 5,
            "hidden_size": 128,
        },
    ),
    "mamba": Tiny(
        "Mamba", {"state_size": 16, "time_step_rank": 5, "conv_kernel": 3, "num_hidden_layers": 2}
    ),
    "falcon_mamba": Tiny(
        "FalconMamba",
        {"state_size": 16, "time_step_rank": 5, "conv_kernel": 3, "num_hidden_layers": 2},
    ),
    "lfm2": Tiny(
        "Lfm2",
        {
            "layer_types": ["conv", FULL, "conv", "conv"],
            "hidden_size": 128,
            "conv_dim": 128,
            "block_dim": 128,
        },
    ),
    "olmo_hybrid": Tiny(
        "OlmoHybrid",
        {
            "layer_types": [LINEAR, FULL, LINEAR, FULL],
            "linear_num_key_heads": 4,  # transformers writes convolutions in equal thirds
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 3,
            "hidden_size": 128,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        names={
            "attention_layer_norm": "input_layernorm",
            "feedforward_layer_norm": "post_attention_layernorm",
        },
    ),
    "qwen3_5_vl": Tiny(
        "Qwen3_5",
        {
            "text_config": BODY
            | {
                "layer_types": [LINEAR, FULL],
                "vocab_size": 520,
                "num_hidden_layers": 2,
                "head_dim": 64,
                "linear_num_key_heads": 1,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.25,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "depth": 1,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "deepstack_visual_indexes": [],
            },
            "image_token_id": 512,
            "video_token_id": 513,
            "vision_start_token_id": 514,
            "vision_end_token_id": 515,
        },
        without=tuple(BODY),
        kind="ForConditionalGeneration",
        options={"limit_mm_per_prompt": {"image": 0, "video": 0}, "skip_tokenizer_init": False},
    ),
}
