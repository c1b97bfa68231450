"""Two tensor-parallel ranks in two threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spliced_connector.serving.ranks import Ranks


class Meeting:
    """What each of two ranks says, both get. Whoever says something that the other one does not
    wait for is told after a minute."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=60)
        self._said: list[Any] = [None, None]

    def rank(self, i: int) -> Ranks:
        def both(said: Any) -> list[Any]:
            self._said[i] = said
            self._barrier.wait()
            found = list(self._said)
            self._barrier.wait()
            return found

        return Ranks(i, lambda value: min(both(value)), both)

    def both(self, *works: Callable[[], object]) -> list[object]:
        """What two ranks answer or raise."""
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(work) for work in works]
            return [future.exception() or future.result() for future in futures]
