"""The weights of the engine in this process, for threads other than the engine's.

HiCache's storage threads have no access to the model. So the plugin records which runners have
loaded a model, when weights are replaced, and when their memory is released and must not be read.

Nothing here imports SGLang, or torch before there is a model.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from spliced_connector.serving.inert import Inert
from spliced_connector.serving.parameters import Parameters


class EngineWeights:
    """Watches the weights of all runners of a process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runners: list[weakref.ref[object]] = []
        self._watched: weakref.WeakSet[Parameters] = weakref.WeakSet()
        self._replaced = ""
        self._released = False

    def keep(self, runner: object) -> None:
        """Records a runner that has loaded a model."""
        with self._lock:
            self._runners = [ref for ref in self._runners if ref() not in (None, runner)]
            self._runners.append(weakref.ref(runner))

    def watch(self) -> Parameters:
        """Watches the models that are loaded now. Raises Inert if there is none, or if the weights
        of a model cannot be read."""
        with self._lock:
            models = [getattr(ref(), "model", None) for ref in self._runners]
            found: list[Any] = [model for model in models if model is not None]
            if not found:
                raise Inert(
                    "changed weights cannot be detected, since no model was found: the plugin"
                    " 'spliced' of sglang.srt.plugins did not run"
                )
            try:
                watched = Parameters(*found)
            except ValueError as err:
                raise Inert(str(err)) from err
            self._watched.add(watched)
            return watched

    def replace(self) -> None:
        """Records that weights are replaced. It is called before they are."""
        self._replaced = "its weights were replaced"

    def release(self) -> None:
        """Records that memory of the weights is about to be released. First waits for a comparison
        that reads this memory."""
        with self._lock:
            self._released = True

    def resume(self) -> None:
        """Records that the memory is back, with unknown contents."""
        with self._lock:
            self._released = False
        self.doubt()

    def doubt(self) -> None:
        """Records that weights may have been written."""
        for watched in list(self._watched):
            watched.doubt()

    def trouble(self, watched: Parameters) -> str:
        """Returns why nothing may be shared any more, "" while nothing has changed."""
        with self._lock:
            return self._replaced or ("" if self._released else watched.changed())

    @property
    def released(self) -> bool:
        """Whether nothing may be shared for now, because weights cannot be compared."""
        return self._released


engine_weights = EngineWeights()
