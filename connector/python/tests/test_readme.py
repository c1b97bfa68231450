"""What the READMEs print: the package's first program is run, settings are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from client_samples import PATIENCE, SMALL
from running import ROOT, Daemon
from spliced_connector.vllm.settings import Settings

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


def test_the_quick_start_reuses_prefixes() -> None:
    """Its model is too small for splicing to be quicker than computing."""
    text = (ROOT / "README.md").read_text()
    (printed,) = re.findall(r"--kv-transfer-config '(\{.*?\})'", text, re.S)
    options = json.loads(printed)["kv_connector_extra_config"]
    settings = Settings.read(options)
    assert (settings.mode, settings.weights) == ("prefix", "scripts/tinyhybrid/model")
    (model,) = re.findall(r"--model (\S+)", text)
    assert model == settings.weights
    assert (ROOT / model / "model.safetensors").is_file()
