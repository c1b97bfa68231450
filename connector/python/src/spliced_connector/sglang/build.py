"""Makes the connection with the daemon from SGLang's arguments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from spliced_connector.model import Profile
from spliced_connector.segments import Finder, Tokenizer
from spliced_connector.serving.connection import connect
from spliced_connector.serving.finding import finder_of
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.offline import read_losses
from spliced_connector.serving.parameters import Parameters
from spliced_connector.serving.primers import primer_ids
from spliced_connector.serving.settings import Mode
from spliced_connector.serving.weights import named_weights
from spliced_connector.sglang.reuse import Reuse
from spliced_connector.sglang.slots import find_slots
from spliced_connector.sglang.splice_settings import SpliceSettings
from spliced_connector.sglang.support import loading_of, survey
from spliced_connector.sglang.walk import walk_over
from spliced_connector.walk import UnsupportedError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

_ATTACH_SECONDS = 1.0
"""How long a start waits for the daemon, so that the first request need not miss."""


def make_reuse(context: TreeCacheBuildContext, settings: SpliceSettings) -> Reuse:
    """Returns the engine's `Reuse`, connected with the daemon if it answers within a second.

    Raises Inert for an engine that is not supported, ValueError for invalid settings.
    """
    engine = survey(context, settings)
    profile = Profile(engine.identity)
    params = context.params
    kv_pool = params.token_to_kv_pool_allocator.get_kvcache()
    slots = find_slots(profile, kv_pool, params.req_to_token_pool)
    model = context.tp_worker.model_runner.model
    try:
        weights = Parameters(model)
    except ValueError as err:
        raise Inert(str(err)) from err
    arch = None
    if settings.mode is Mode.SPLICE:
        try:
            arch = walk_over(model, profile.share(context.tp_rank))
        except UnsupportedError as err:
            raise Inert(f"mode splice cannot walk this model: {err}") from err
    named = isinstance(settings.primer, str) and settings.primer
    tokenizer = _tokenizer(context) if settings.find or named else None
    finder = finder_of(settings, tokenizer) if settings.find else Finder()
    vocabulary = context.tp_worker.model_runner.model_config.vocab_size
    primer = primer_ids(settings.primer, tokenizer, engine.identity, vocabulary)
    seams, after = settings.seam_tokens, settings.primer_after
    named_by = partial(named_weights, settings, loading_of(context.server_args))
    losses = read_losses(settings.fidelity, named_by, primer, seams, after)
    counted = bool(context.server_args.enable_metrics)
    client = connect(settings, f"sglang {engine.version}")
    reuse = Reuse(engine, settings, client, arch, slots, finder, weights, primer, counted)
    reuse.model.measured_offline(losses)
    reuse.model.wait_attached(_ATTACH_SECONDS)
    return reuse


def _tokenizer(context: TreeCacheBuildContext) -> Tokenizer | None:
    """Returns the engine's own tokenizer; None if the engine was started without one."""
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    args = context.server_args
    if args.skip_tokenizer_init:
        return None
    found = get_tokenizer(
        args.tokenizer_path or args.model_path,
        tokenizer_mode=args.tokenizer_mode,
        trust_remote_code=args.trust_remote_code,
    )
    return cast("Tokenizer | None", found)
