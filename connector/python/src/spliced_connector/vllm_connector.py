"""What `spliced_connector.vllm` was called: settings of running engines name it."""

from spliced_connector.vllm.connector import SplicedConnector

__all__ = ["SplicedConnector"]
