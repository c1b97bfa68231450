"""The weights of the engine in this process, for what runs on other threads than the engine.

HiCache's storage threads are not given the model. So the plugin notes which runners have loaded
one, and when their weights are replaced, or their memory is released and must not be read.

Nothing here imports SGLang, or torch before there is a model.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from spliced_connector.serving.inert import Inert
from spliced_connector.serving.parameters import Parameters


class EngineWeights:
    """Those of all runners of a process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runners: list[weakref.ref[object]] = []
        self._watched: weakref.WeakSet[Parameters] = weakref.WeakSet()
        self._replaced = ""
        self._released = False

    def keep(self, runner: object) -> None:
        """Remembers a runner that has loaded a model."""
        with self._lock:
            self._runners = [ref for ref in self._runners if ref() not in (None, runner)]
            self._runners.append(weakref.ref(runner))

    def watch(self) -> Parameters:
        """Watches the models that are loaded now. Raises Inert where none is known, or one cannot
        be read."""
        with self._lock:
            models = [getattr(ref(), "model", None) for ref in self._runners]
            found: list[Any] = [model for model in models if model is not None]
            if not found:
                raise Inert(
                    "changed weights would not be noticed, as no model was found: the plugin"
                    " 'spliced' of sglang.srt.plugins did not run"
                )
            try:
                watched = Parameters(*found)
            except ValueError as err:
                raise Inert(str(err)) from err
            self._watched.add(watched)
            return watched

    def replace(self) -> None:
        """From now on weights are, or will be, others than those that were loaded."""
        self._replaced = "its weights were replaced"

    def release(self) -> None:
        """The memory of the weights is about to go. Returns when nobody reads it any more."""
        with self._lock:
            self._released = True

    def resume(self) -> None:
        """The memory is back, and may have other contents."""
        with self._lock:
            self._released = False
        self.doubt()

    def doubt(self) -> None:
        """Weights may have been written."""
        for watched in list(self._watched):
            watched.doubt()

    def trouble(self, watched: Parameters) -> str:
        """Why nothing may be shared for good, "" while nothing has changed."""
        with self._lock:
            return self._replaced or ("" if self._released else watched.changed())

    @property
    def released(self) -> bool:
        """Whether nothing can be said, and nothing shared, for now."""
        return self._released


engine_weights = EngineWeights()
