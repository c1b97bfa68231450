"""What may import what. The table is the map of the package: a change of it is a decision."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src"
OURS = "spliced_connector"

CORE = ("errors", "wire", "model")

# Package or module of the top folder: what of ours it imports, by door.
LAYERS: dict[str, tuple[str, ...]] = {
    "codes": (),
    "errors": ("codes",),
    "lazy": (),
    "wire": ("errors",),
    "model": ("errors",),
    "segments": (),
    "gpu": CORE,
    "client.connection": CORE,
    "client": (*CORE, "gpu", "client.connection"),
    "walk": ("errors", "lazy", "model", "walk.architectures"),
    "walk.architectures": ("model", "walk"),
    "hf": ("errors", "lazy", "model", "client", "walk", "hf.device", "serving"),
    "hf.device": ("errors", "model", "gpu", "client", "walk", "serving"),
    "serving": ("errors", "model", "segments", "client", "walk"),
    "fidelity": ("errors", "model", "segments", "serving", "walk"),
    "vllm": ("", "errors", "lazy", "model", "segments", "client", "walk", "serving"),
    "sglang": ("", "errors", "lazy", "model", "segments", "client", "walk", "serving"),
    # Names of former times, in settings of engines.
    "vllm_connector": ("vllm",),
    "vllm_plugin": ("vllm",),
    "sglang_backend": ("sglang",),
    "drift": ("recorded",),
    "recorded": (),
    "": ("errors", "model", "segments"),
}

# Foreign package: which of ours import it, and no others.
FOREIGN = {
    "xxhash": {"client.connection"},
    "torch": {
        "walk",
        "walk.architectures",
        "hf",
        "hf.device",
        "serving",
        "fidelity",
        "vllm",
        "sglang",
    },
    "transformers": {"hf", "fidelity", "sglang"},
    "huggingface_hub": {"serving"},
    "safetensors": {"hf"},
    "vllm": {"vllm"},
    "sglang": {"sglang"},
    "prometheus_client": {"sglang"},
}

# They import where there is neither torch nor any other package.
STANDARD_LIBRARY_ONLY = [
    OURS, "spliced_connector.wire", "spliced_connector.model", "spliced_connector.gpu",
    "spliced_connector.segments",
    "spliced_connector.client", "spliced_connector.walk", "spliced_connector.hf",
    "spliced_connector.vllm", "spliced_connector.sglang", "spliced_connector.drift",
    "spliced_connector.vllm.plugin", "spliced_connector.vllm_plugin",
    "spliced_connector.serving", "spliced_connector.serving.cuts",
    "spliced_connector.serving.splices",
    "spliced_connector.serving.finding", "spliced_connector.serving.tally",
    "spliced_connector.fidelity", "spliced_connector.fidelity.intervals",
    "spliced_connector.fidelity.prompts", "spliced_connector.fidelity.report",
]  # fmt: skip

DOORS = ("model", "segments", "gpu", "client", "walk")

MODULES_MOST = 25
"""In one folder."""


def modules() -> dict[str, Path]:
    """Every module by its name below the package, "" is the package."""
    found = {}
    for path in sorted((ROOT / OURS).rglob("*.py")):
        parts = path.relative_to(ROOT / OURS).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    assert len(found) > 100
    return found


MODULES = modules()


def package_of(module: str) -> str:
    """The row of the table that a module belongs to."""
    while module and module not in LAYERS:
        module = module.rpartition(".")[0]
    return module


@cache
def imports_of(path: Path) -> set[str]:
    """What is imported anywhere in a module: modules, by full name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix(f"{OURS}.") in MODULES
                names.add(full if is_module else node.module)
    return names


def ours(path: Path) -> set[str]:
    """The modules of ours that a module imports."""
    names = (name for name in imports_of(path) if name.split(".")[0] == OURS)
    return {name[len(OURS) :].lstrip(".") for name in names}


def test_packages_import_what_the_table_says() -> None:
    wrong = []
    for module, path in MODULES.items():
        package = package_of(module)
        for name in sorted(ours(path)):
            other = package_of(name)
            if other != package and other not in LAYERS[package]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_packages_import_each_other_by_their_doors() -> None:
    wrong = []
    for module, path in MODULES.items():
        top = module.split(".")[0]
        for name in sorted(ours(path)):
            inside = name.split(".")[0] in DOORS and "." in name
            if inside and name.split(".")[0] != top:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {module: ours(path) - {module} for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_foreign_packages_are_imported_by_those_who_need_them() -> None:
    wrong = []
    for module, path in MODULES.items():
        names = {name.split(".")[0] for name in imports_of(path)}
        for name in sorted(names - sys.stdlib_module_names - {OURS}):
            if package_of(module) not in FOREIGN.get(name, ()):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_folders_stay_small() -> None:
    counts: dict[Path, int] = {}
    for path in MODULES.values():
        counts[path.parent] = counts.get(path.parent, 0) + 1
    assert {str(folder): n for folder, n in counts.items() if n > MODULES_MOST} == {}


def test_the_core_needs_the_standard_library_only() -> None:
    imports = ", ".join(STANDARD_LIBRARY_ONLY)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {imports}"
    # -S leaves the installed packages out, -I everything that the environment could add.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_former_names_of_the_adapters_lead_to_them() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spliced_connector.vllm_plugin as a"
    )
    code += "; import spliced_connector.vllm.plugin as b; assert a.register is b.register"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    for module, name in (
        ("vllm_connector", "vllm.connector"),
        ("sglang_backend", "sglang.backend"),
    ):
        assert ours(MODULES[module]) == {name}
