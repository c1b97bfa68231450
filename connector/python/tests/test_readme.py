"""The first program of the package's README, run as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from client_samples import PATIENCE, SMALL
from running import Daemon

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_first_program_of_the_readme_stores_and_finds_a_segment(daemon: Daemon) -> None:
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)[0]
    program = program.replace("1.0)", f"{PATIENCE})")  # a busy machine attaches late
    replaced = {
        'from_config(config, weights_digest("/models/qwen"))': "identity",
        'socket="/run/spliced/spliced.sock"': "socket=socket",
    }
    for printed, run in replaced.items():
        assert printed in program
        program = program.replace(printed, run)

    def compute(spec: object, tokens: list[int]) -> list[bytes]:
        layout = namespace["model"].profile.segment_layout(spec)
        return [bytes([n % 251]) * part.nbytes for n, part in enumerate(layout.parts)]

    namespace: dict[str, Any] = {
        "identity": SMALL,
        "socket": daemon.socket,
        "tokens": list(range(40)),
        "compute": compute,
    }
    exec(compile(program, str(README), "exec"), namespace)
    assert namespace["found"] is None, "the first time"
    assert namespace["outcome"] == 0
    exec(compile(program, str(README), "exec"), namespace)
    assert namespace["found"] is not None, "the second time"
