"""What may import what: the core needs the standard library only, and each engine has its files."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"

# Package: the modules that may import it, and no others.
ALLOWED = {
    "xxhash": ["checksum"],
    "transformers": ["hf", "hf_*"],
    "vllm": ["vllm_*", "layout_probe"],
    "sglang": ["sglang_*"],
    "torch": [
        "canary", "capture", "checkpoints", "families", "segments", "splice", "walk.*",
        "device_torch", "hf", "hf_*", "layout", "layout_probe", "vllm_*", "sglang_*",
    ],
    "safetensors": ["hf", "hf_*"],
}  # fmt: skip

# They import where there is neither torch nor any other package.
CORE = [
    "spliced_connector", "spliced_connector.wire", "spliced_connector.client",
    "spliced_connector.model", "spliced_connector.publish", "spliced_connector.advise",
    "spliced_connector.compute", "spliced_connector.lease", "spliced_connector.memory",
    "spliced_connector.options", "spliced_connector.plan", "spliced_connector.profile",
    "spliced_connector.keys", "spliced_connector.layouts", "spliced_connector.config",
    "spliced_connector.digest", "spliced_connector.vllm_plugin",
    "spliced_connector.device_splice", "spliced_connector.device_engine",
    "spliced_connector.dlpack",
]  # fmt: skip


def imports_of(path: Path) -> set[str]:
    """The packages that a module imports anywhere in it, ours and the standard library apart."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    packages = {name.split(".")[0] for name in names}
    return packages - sys.stdlib_module_names - {"spliced_connector"}


def test_only_the_files_of_a_package_import_it() -> None:
    wrong = []
    paths = sorted((ROOT / "spliced_connector").rglob("*.py"))
    assert len(paths) > 20
    for path in paths:
        module = ".".join(path.relative_to(ROOT / "spliced_connector").with_suffix("").parts)
        for package in imports_of(path):
            if not any(fnmatch(module, pattern) for pattern in ALLOWED.get(package, ())):
                wrong.append(f"{module} imports {package}")
    assert wrong == []


def test_the_core_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(CORE)}"
    # -S leaves the installed packages out, -I everything that the environment could add.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
