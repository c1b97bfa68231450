"""The former name of `spliced_connector.vllm.plugin`, used in installed entry points."""

from spliced_connector.vllm.plugin import register

__all__ = ["register"]
