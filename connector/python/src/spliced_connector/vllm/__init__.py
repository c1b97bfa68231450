"""The connector that vLLM loads: `"kv_connector_module_path": "spliced_connector.vllm"`.

connector   the class that vLLM builds, in the scheduler and in each worker
scheduler   its half in the scheduler; prefix_scheduler or splice_scheduler for the mode
worker      its half in a worker; prefix or splice for the mode
plugin      records the model that a runner loads (vllm.general_plugins)
"""

from typing import TYPE_CHECKING

from spliced_connector.lazy import attribute

if TYPE_CHECKING:
    from spliced_connector.vllm.connector import SplicedConnector

__all__ = [
    "SplicedConnector",
]

_MODULES = {
    "connector": "SplicedConnector",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _MODULES, name)
