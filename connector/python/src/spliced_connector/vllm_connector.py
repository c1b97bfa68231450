"""The former name of `spliced_connector.vllm`, used in settings of running engines."""

from spliced_connector.vllm.connector import SplicedConnector

__all__ = ["SplicedConnector"]
