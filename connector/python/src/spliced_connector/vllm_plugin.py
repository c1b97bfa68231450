"""What `spliced_connector.vllm.plugin` was called: installed entry points may name it."""

from spliced_connector.vllm.plugin import register

__all__ = ["register"]
