"""Names of the engines' interfaces that the adapters depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A call of an engine's function for one small model. Its result, a shape, is recorded."""

    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True)
class Target:
    """A class or function. `members`: the fields and enumeration members to record; empty for all.
    every: for a base class of ours, all public methods are recorded. A new method, even one with a
    default implementation, is a call that the engine may make and our class does not handle yet."""

    module: str
    name: str
    methods: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    every: bool = False


_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_SPECS = "vllm.v1.kv_cache_interface"
_SCHEDULED = "vllm.v1.core.sched.output"
_BLOCKS = "vllm.v1.core"
_BACKENDS = "vllm.v1.attention.backends"
_MAMBA = "vllm.model_executor.layers.mamba"
_STATES = f"{_MAMBA}.mamba_utils"
_OLMO = "OlmoHybridGatedDeltaNetAttention"
_ATTENTION = "vllm.model_executor.layers.attention.attention"

VLLM = (
    Target(
        _CONNECTOR,
        "KVConnectorBase_V1",
        methods=("__init__",),
        every=True,
    ),
    Target(_CONNECTOR, "SupportsHMA", every=True),
    Target(_CONNECTOR, "KVConnectorRole"),
    Target(_CONNECTOR, "KVConnectorTransferResults"),
    Target(_SPECS, "KVCacheConfig"),
    Target(_SPECS, "KVCacheGroupSpec", members=("layer_names", "kv_cache_spec")),
    Target(
        _SPECS, "FullAttentionSpec", members=("block_size", "num_kv_heads", "head_size", "dtype")
    ),
    Target(_SPECS, "MambaSpec"),
    Target(
        _SPECS,
        "MLAAttentionSpec",
        members=("block_size", "dtype", "tokens_per_state", "model_version", "sliding_window"),
    ),
    # Used to run the layers' own forward cores (`vllm/layout/mixers.py`).
    Target("vllm.forward_context", "set_forward_context"),
    Target("vllm.forward_context", "ForwardContext", members=("no_compile_layers",)),
    Target(
        "vllm.v1.attention.backend",
        "CommonAttentionMetadata",
        members=(
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
            "num_reqs",
            "num_actual_tokens",
            "max_query_len",
            "max_seq_len",
            "block_table_tensor",
            "slot_mapping",
            "is_prefilling",
        ),
    ),
    Target("vllm.v1.attention.backend", "AttentionMetadataBuilder", methods=("__init__", "build")),
    Target(f"{_MAMBA}.ops.cpu.gdn_attention", "cpu_gdn_attention_core"),
    Target(f"{_MAMBA}.gdn.olmo_gdn_linear_attn", _OLMO, methods=("_forward_core",)),
    Target(f"{_MAMBA}.mamba_mixer2", "MambaMixer2", methods=("conv_ssm_forward",)),
    Target(f"{_MAMBA}.mamba_mixer", "MambaMixer", methods=("forward_impl", "_ssm_transform")),
    Target(f"{_MAMBA}.short_conv", "ShortConv", methods=("forward_native", "forward_cuda")),
    Target(
        f"{_MAMBA}.linear.bailing_linear_attn", "BailingMoELinearAttention", methods=("_forward",)
    ),
    Target(
        f"{_MAMBA}.linear.minimax_linear_attn",
        "MiniMaxText01LinearAttention",
        methods=("_build_slope_tensor",),
    ),
    Target(
        "vllm.model_executor.models.bailing_moe_v3",
        "BailingMoeV3KimiDeltaAttention",
        methods=("_forward",),
    ),
    Target("vllm.models.kimi_k3.nvidia.kda", "KimiK3DeltaAttention", methods=("_forward",)),
    Target(
        "vllm.models.kimi_k3.nvidia.mla",
        "MultiHeadLatentAttention",
        methods=("_decode_concat_cache",),
    ),
    Target("vllm.v1.attention.backends.mla.cpu_mla", "CPUMLAImpl", methods=("do_kv_cache_update",)),
    # Shared pages (`vllm/pages`).
    Target(f"{_BLOCKS}.single_type_kv_cache_manager", "SingleTypeKVCacheManager", every=True),
    Target(
        f"{_BLOCKS}.single_type_kv_cache_manager",
        "FullAttentionManager",
        methods=("cache_blocks", "find_longest_cache_hit"),
    ),
    Target(
        f"{_BLOCKS}.block_pool",
        "BlockPool",
        methods=("touch", "get_new_blocks", "unpin_blocks", "free_blocks"),
    ),
    Target("vllm.v1.kv_cache_spec_registry", "register_kv_cache_spec"),
    Target("vllm.v1.kv_cache_spec_registry", "KVCacheSpecRegistry", methods=("get_manager_class",)),
    Target(_SPECS, "replace_as"),
    Target(f"{_BACKENDS}.registry", "register_backend"),
    Target("vllm.v1.attention.backend", "AttentionBackend", methods=("customize_spec",)),
    Target(
        f"{_BACKENDS}.cpu_attn",
        "CPUAttentionBackendImpl",
        methods=("__init__", "forward", "do_kv_cache_update"),
    ),
    Target(f"{_BACKENDS}.cpu_attn", "CPUAttentionMetadataBuilder", methods=("__init__", "build")),
    Target(f"{_BACKENDS}.cpu_attn", "CPUAttentionMetadata"),
    Target(
        _SCHEDULED,
        "SchedulerOutput",
        members=(
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "finished_req_ids",
            "preempted_req_ids",
        ),
    ),
    Target(
        _SCHEDULED,
        "NewRequestData",
        members=("req_id", "prompt_token_ids", "block_ids", "num_computed_tokens"),
    ),
    Target(
        _SCHEDULED, "CachedRequestData", members=("req_ids", "new_block_ids", "num_computed_tokens")
    ),
    Target(
        "vllm.v1.request",
        "Request",
        methods=("update_block_hashes",),
        attributes=(
            "block_hashes",
            "kv_transfer_params",
            "cache_salt",
            "lora_request",
            "num_computed_tokens",
            "num_prompt_tokens",
            "shared_prefix_boundary",
        ),
    ),
    Target("vllm.v1.core.kv_cache_manager", "KVCacheManager", attributes=("block_pool",)),
    Target(
        "vllm.v1.core.block_pool",
        "BlockPool",
        methods=("get_cached_block", "touch", "free_blocks"),
        attributes=("hash_block_size",),
    ),
    Target("vllm.v1.core.kv_cache_utils", "generate_block_hash_extra_keys"),
    Target("vllm.distributed.parallel_state", "get_tp_group"),
    # Waking a sleeping engine (`vllm/plugin.py`).
    Target(
        "vllm.v1.engine.core",
        "EngineCoreProc",
        methods=("collective_rpc", "reset_prefix_cache", "run_busy_loop", "wake_up"),
    ),
    Target("vllm.v1.engine", "EngineCoreRequestType", members=("WAKEUP",)),
    Target("vllm.v1.core.kv_cache_manager", "KVCacheBlocks", methods=("get_block_ids",)),
    Target(
        "vllm.v1.worker.gpu_model_runner", "GPUModelRunner", methods=("load_model", "execute_model")
    ),
    Target("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", methods=("load_model",)),
    Target(_ATTENTION, "Attention", attributes=("dtype", "kv_cache_dtype")),
    Target(_ATTENTION, "set_default_quant_scales"),
    Target(
        "vllm.v1.attention.backends.cpu_attn",
        "CPUAttentionBackendImpl",
        methods=("do_kv_cache_update",),
    ),
    Target(
        _STATES,
        "MambaStateShapeCalculator",
        methods=("gated_delta_net_state_shape",),
        calls=(Call("gated_delta_net_state_shape", (1, 2, 4, 64, 128, 4, 0)),),
    ),
    Target(
        "vllm.model_executor.models.qwen3_next",
        "Qwen3NextDecoderLayer",
        methods=("__init__", "forward"),
    ),
    Target(
        "vllm.model_executor.models.qwen3_5",
        "Qwen3_5ForCausalLM",
        methods=("compute_logits", "forward"),
    ),
    Target(
        f"{_MAMBA}.gdn.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention",
        methods=("_forward_core", "forward_cpu", "rearrange_mixed_qkv"),
        attributes=("A_log", "conv1d", "dt_bias", "in_proj_ba", "in_proj_qkvz", "norm", "out_proj"),
    ),
)

_CACHE = "sglang.srt.mem_cache"
_UNIFIED = f"{_CACHE}.unified_cache"
_MANAGERS = "sglang.srt.managers"
_PARTS = f"{_MANAGERS}.scheduler_components"
_MODELS = "sglang.srt.models"
_HEADS = (
    "attn",
    "head_dim",
    "num_heads",
    "num_kv_heads",
    "o_proj",
    "qkv_proj",
    "rotary_emb",
    "scaling",
)
_SIZES = ("kv_size", "q_size")
_DELTA = (
    "A_log",
    "activation",
    "attn",
    "conv_kernel_size",
    "dt_bias",
    "in_proj_ba",
    "in_proj_qkvz",
    "norm",
    "out_proj",
)

SGLANG = (
    Target(
        f"{_CACHE}.hicache_storage",
        "HiCacheStorage",
        methods=(
            "batch_exists",
            "batch_exists_v2",
            "batch_get",
            "batch_get_v1",
            "batch_get_v2",
            "batch_set",
            "batch_set_v1",
            "batch_set_v2",
            "clear",
            "exists",
            "get",
            "register_mem_host_pool_v2",
            "register_mem_pool_host",
            "set",
        ),
    ),
    Target(f"{_CACHE}.hicache_storage", "HiCacheStorageConfig"),
    Target(f"{_CACHE}.hicache_storage", "HiCacheStorageExtraInfo"),
    Target(f"{_CACHE}.hicache_storage", "PoolTransfer"),
    Target(f"{_CACHE}.hicache_storage", "PoolTransferResult"),
    Target(f"{_CACHE}.hicache_storage", "PoolHitPolicy"),
    Target(f"{_CACHE}.hicache_storage", "PoolName", members=("KV", "MAMBA", "SWA")),
    Target(f"{_CACHE}.registry", "register_radix_cache_backend"),
    Target(f"{_CACHE}.registry", "default_radix_cache_factory"),
    Target(f"{_CACHE}.registry", "TreeCacheBuildContext"),
    Target(f"{_CACHE}.registry", "get_radix_cache_factory"),
    Target(f"{_CACHE}.registry", "create_unified_radix_cache"),
    Target(
        f"{_CACHE}.base_prefix_cache",
        "BasePrefixCache",
        methods=(
            "init_load_back",
            "match_prefix",
            "checkpoint",
            "evict",
            "finish",
            "release_aborted_request",
        ),
    ),
    Target(f"{_CACHE}.base_prefix_cache", "MatchPrefixParams"),
    Target(f"{_CACHE}.base_prefix_cache", "MatchResult"),
    Target(f"{_CACHE}.base_prefix_cache", "InitLoadBackParams"),
    Target(f"{_CACHE}.base_prefix_cache", "EvictParams"),
    Target(f"{_CACHE}.base_prefix_cache", "CacheRequestHandle"),
    Target(f"{_CACHE}.base_prefix_cache", "CacheRequestOutcome"),
    Target(
        f"{_CACHE}.memory_pool", "MambaPool", methods=("__init__",), attributes=("mamba_cache",)
    ),
    Target(
        f"{_CACHE}.memory_pool",
        "HybridReqToTokenPool",
        methods=("__init__", "alloc", "free"),
        attributes=("mamba_allocator", "mamba_ckpt_pool", "mamba_map", "mamba_pool"),
    ),
    Target(f"{_CACHE}.memory_pool", "ReqToTokenPool", attributes=("req_to_token",)),
    Target(
        f"{_CACHE}.memory_pool",
        "HybridLinearKVPool",
        methods=("__init__", "get_kv_buffer", "set_kv_buffer"),
        attributes=("full_kv_pool",),
    ),
    Target(f"{_CACHE}.memory_pool", "MHATokenToKVPool", attributes=("k_buffer", "v_buffer")),
    Target(f"{_CACHE}.memory_pool", "KVCache", attributes=("dtype", "store_dtype")),
    Target(
        f"{_CACHE}.storage.backend_factory", "StorageBackendFactory", methods=("create_backend",)
    ),
    Target(
        f"{_CACHE}.pool_host.mha",
        "MHATokenToKVPoolHost",
        methods=("get_data_page", "get_dummy_flat_data_page", "set_from_flat_data_page"),
    ),
    Target(
        f"{_CACHE}.pool_host.mamba",
        "MambaPoolHost",
        methods=("get_data_page",),
        attributes=("temporal_buffer", "conv_buffer", "slot_state_buffers"),
    ),
    Target(
        "spliced_connector.sglang.samples",
        "PoolShapes",
        calls=(
            Call("device", ()),
            Call("rows", ("layer_first",)),
            Call("rows", ("page_first",)),
            Call("rows", ("page_first_direct",)),
            Call("rows", ("page_head",)),
            Call("states", ()),
        ),
    ),
    Target(f"{_CACHE}.unified_cache.unified_cache_linker", "UnifiedCacheLinker"),
    Target("sglang.srt.plugins.hook_registry", "HookRegistry", methods=("register",)),
    # The base of our cache, and the classes that it uses (`sglang/radix.py`).
    Target(
        f"{_CACHE}.unified_radix_cache",
        "UnifiedRadixCache",
        methods=("finish",),
        every=True,
        attributes=(
            "_components_tuple",
            "disable",
            "req_to_token_pool",
            "token_to_kv_pool_allocator",
            "tree_core",
        ),
    ),
    Target(
        f"{_UNIFIED}.unified_tree_core_interface",
        "UnifiedTreeCoreInterface",
        methods=("get_component_device_value", "collect_full_device_indices"),
    ),
    Target(f"{_UNIFIED}.component_type", "ComponentType", members=("MAMBA",)),
    Target(f"{_UNIFIED}.components.base", "TreeComponent", methods=("cleanup_after_caching_req",)),
    Target(
        f"{_UNIFIED}.components.mamba", "MambaComponent", methods=("cleanup_after_caching_req",)
    ),
    Target(
        f"{_CACHE}.allocator.base",
        "BaseTokenToKVPoolAllocator",
        methods=("alloc", "available_size", "free", "get_kvcache"),
    ),
    Target(f"{_CACHE}.allocator.mamba", "MambaSlotAllocator", methods=("alloc",)),
    Target(
        f"{_CACHE}.cache_init_params",
        "CacheInitParams",
        members=("page_size", "req_to_token_pool", "token_to_kv_pool_allocator"),
    ),
    Target(
        f"{_MANAGERS}.schedule_batch",
        "Req",
        methods=("finished", "init_next_round_input"),
        attributes=(
            "cache_salt",
            "customized_info",
            "eos_token_ids",
            "extend_end",
            "extra_key",
            "full_untruncated_fill_ids",
            "host_hit_length",
            "input_embeds",
            "kv",
            "last_node",
            "lora_id",
            "multimodal_inputs",
            "origin_input_ids",
            "positional_embed_overrides",
            "prefix_len",
            "rid",
            "sampling_params",
            "session",
            "tokenizer",
        ),
    ),
    Target(
        f"{_MANAGERS}.schedule_batch",
        "ReqKvInfo",
        methods=("holds_mamba",),
        members=(
            "kv_committed_len",
            "mamba_cow_src_index",
            "mamba_needs_clear",
            "mamba_pool_idx",
            "req_pool_idx",
        ),
    ),
    Target(
        "sglang.srt.sampling.sampling_params",
        "SamplingParams",
        members=("custom_params", "stop_token_ids"),
    ),
    # What the plugin wraps (`sglang/plugin.py`) and reads.
    Target("sglang.srt.plugins.hook_registry", "HookType", members=("AROUND",)),
    Target(
        f"{_MANAGERS}.scheduler",
        "Scheduler",
        methods=("flush_cache", "get_next_batch_to_run", "run_batch"),
        attributes=("enable_overlap", "tree_cache"),
    ),
    Target(
        f"{_MANAGERS}.schedule_batch",
        "ScheduleBatch",
        methods=("is_empty",),
        members=("forward_mode", "reqs"),
    ),
    Target("sglang.srt.model_executor.forward_batch_info", "ForwardMode", methods=("is_extend",)),
    Target(
        f"{_MANAGERS}.schedule_policy",
        "PrefillAdder",
        methods=("add_chunked_req", "add_one_req"),
        attributes=("can_run_list", "new_chunked_req", "rem_chunk_tokens", "tree_cache"),
    ),
    Target(f"{_MANAGERS}.schedule_policy", "AddReqResult"),
    Target(
        f"{_PARTS}.output_streamer",
        "SchedulerOutputStreamer",
        methods=("is_request_level_customized_info_key",),
    ),
    Target(
        f"{_PARTS}.weight_updater",
        "SchedulerWeightUpdaterManager",
        methods=(
            "begin_weight_update",
            "release_memory_occupation",
            "resume_memory_occupation",
            "update_weights_from_disk",
            "update_weights_from_distributed",
            "update_weights_from_ipc",
            "update_weights_from_tensor",
        ),
        members=("offload_tags", "scheduler"),
    ),
    Target(
        "sglang.srt.model_executor.model_runner",
        "ModelRunner",
        methods=("load_model",),
        attributes=("model",),
    ),
    Target("sglang.srt.runtime_context", "get_server_args"),
    Target("sglang.srt.utils.hf_transformers_utils", "get_tokenizer"),
    # The modules that the walk uses (`sglang/walk.py`).
    Target(
        "sglang.srt.layers.radix_attention",
        "RadixAttention",
        attributes=("logit_cap", "sliding_window_size"),
    ),
    Target(
        "sglang.srt.layers.radix_linear_attention",
        "RadixLinearAttention",
        attributes=(
            "bias",
            "conv_weights",
            "head_k_dim",
            "head_v_dim",
            "num_k_heads",
            "num_v_heads",
        ),
    ),
    Target(
        f"{_MODELS}.qwen3_5",
        "Qwen3_5AttentionDecoderLayer",
        methods=("_prepare_qkv_gate",),
        attributes=_HEADS,
    ),
    Target(
        f"{_MODELS}.qwen3_5",
        "Qwen3_5GatedDeltaNet",
        methods=("fix_query_key_value_ordering",),
        attributes=_DELTA,
    ),
    Target(
        f"{_MODELS}.qwen3_next",
        "Qwen3HybridAttentionDecoderLayer",
        methods=("_apply_qk_norm",),
        attributes=("attn_output_gate", *_HEADS, *_SIZES),
    ),
    Target(
        f"{_MODELS}.qwen3_next",
        "Qwen3GatedDeltaNet",
        methods=("fix_query_key_value_ordering",),
        attributes=_DELTA,
    ),
    Target(f"{_MODELS}.llama", "LlamaAttention", attributes=(*_HEADS, *_SIZES)),
    Target(f"{_MODELS}.qwen2", "Qwen2Attention", attributes=(*_HEADS, *_SIZES)),
    Target(
        "sglang.srt.layers.logits_processor",
        "LogitsProcessor",
        attributes=("config", "final_logit_softcapping"),
    ),
)

_FORWARDS = {
    "bamba": "Bamba",
    "falcon_h1": "FalconH1",
    "falcon_mamba": "FalconMamba",
    "granitemoehybrid": "GraniteMoeHybrid",
    "jamba": "Jamba",
    "kimi_linear": "KimiLinear",
    "llama": "Llama",
    "mamba": "Mamba",
    "mamba2": "Mamba2",
    "minimax": "MiniMax",
    "mistral": "Mistral",
    "nemotron_h": "NemotronH",
    "olmo_hybrid": "OlmoHybrid",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "qwen3_next": "Qwen3Next",
    "zamba": "Zamba",
    "zamba2": "Zamba2",
}

TRANSFORMERS = (
    # Caches that are filled and read back (`hf/cache.py`), and our layers (`hf/paged.py`).
    Target("transformers.cache_utils", "Cache", methods=("__init__", "update", "get_seq_length")),
    Target("transformers.cache_utils", "DynamicCache", methods=("__init__",)),
    Target("transformers.cache_utils", "DynamicLayer", every=True, methods=("__init__",)),
    Target(
        "transformers.cache_utils",
        "LinearAttentionLayer",
        methods=("update_conv_state", "update_recurrent_state"),
    ),
    Target(
        "transformers.cache_utils",
        "LinearAttentionCacheLayerMixin",
        attributes=("conv_states", "recurrent_states"),
    ),
    Target(
        "transformers.models.minimax.modeling_minimax",
        "MiniMaxCache",
        methods=("get_linear_cache", "set_linear_cache"),
    ),
    Target("transformers.integrations.sdpa_attention", "sdpa_attention_forward"),
    Target("transformers.masking_utils", "AttentionMaskInterface"),
    Target("transformers.masking_utils", "sdpa_mask"),
    Target("transformers.modeling_utils", "AttentionInterface"),
    Target("transformers.modeling_utils", "PreTrainedModel", methods=("set_attn_implementation",)),
    Target("transformers.generation.utils", "GenerationMixin", methods=("generate",)),
    # Parameters of a step (`hf/forward.py`): the name of the cache, and positions.
    *(
        Target(f"transformers.models.{kind}.modeling_{kind}", f"{name}ForCausalLM", ("forward",))
        for kind, name in _FORWARDS.items()
    ),
)

TARGETS: dict[str, tuple[Target, ...]] = {
    "sglang": SGLANG,
    "transformers": TRANSFORMERS,
    "vllm": VLLM,
}
