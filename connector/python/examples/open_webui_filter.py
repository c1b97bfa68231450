"""
title: spliced
description: Says per model where a vLLM server with the spliced connector looks for segments.
"""

# An Open WebUI filter (Admin Panel, Functions). Without it the server uses the finders that it
# was started with. With it an administrator selects the finders for the models that the filter is
# enabled for, or switches reuse at any position off for them.

from pydantic import BaseModel, Field


class Filter:
    class Valves(BaseModel):
        find: str = Field(
            default="known,template,chunks",
            description="Finders, of those that the server was started with; empty for none.",
        )

    def __init__(self) -> None:
        self.valves = self.Valves()

    def inlet(self, body: dict, __user__: dict | None = None) -> dict:
        """Adds the parameters that vLLM passes to the connector. Explicit cuts take precedence."""
        finders = [name.strip() for name in self.valves.find.split(",") if name.strip()]
        params = body.setdefault("kv_transfer_params", {})
        params.setdefault("spliced", {"v": 1, "find": finders})
        return body
