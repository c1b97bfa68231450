"""Names of the engines' interfaces that the adapters depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A function of the engine whose answer for one small model is recorded: a shape."""

    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True)
class Target:
    """A class or function. `members` limits fields and enumeration members, empty = all of them.
    every: a class that ours are made of, all of whose public methods are recorded: a new one, also
    one with a default, is something that the engine asks and we have not answered."""

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
    # What the layers' own forward cores are run with (`vllm/layout/mixers.py`).
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
    # How an engine that sleeps is woken (`vllm/plugin.py`).
    Target("vllm.v1.engine.core", "EngineCoreProc", methods=("run_busy_loop",)),
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
    Target(f"{_CACHE}.memory_pool", "MambaPool", methods=("__init__",)),
    Target(f"{_CACHE}.memory_pool", "HybridReqToTokenPool", methods=("__init__", "alloc", "free")),
    Target(
        f"{_CACHE}.memory_pool",
        "HybridLinearKVPool",
        methods=("__init__", "get_kv_buffer", "set_kv_buffer"),
    ),
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
)

TARGETS: dict[str, tuple[Target, ...]] = {"sglang": SGLANG, "vllm": VLLM}
