"""The structure that the architecture page promises, checked: arrows between rooms, no cycles, sizes, and a light public face."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "forebay"

# Which rooms a room may import from. `forebay` is the public face, `forebay/__init__.py`.
LEAVES = {"errors", "_version"}
KERNELS = {"codec", "directio"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_version": set(),
    "codec": LEAVES,
    "directio": LEAVES,
    "s3": LEAVES,
    "drive": LEAVES | KERNELS,
    "engine": LEAVES | KERNELS | {"drive"},
    "server": LEAVES | KERNELS | {"drive", "engine", "s3"},
    "locations": LEAVES | KERNELS,
    "checkpoint": LEAVES | KERNELS | {"locations"},
    "forebay": LEAVES | {"checkpoint"},
    "torch": LEAVES | {"checkpoint"},  # public faces for programs that use these
    "lightning": LEAVES | {"checkpoint"},
    "transformers": LEAVES | {"checkpoint"},
    "levanter": LEAVES | {"checkpoint"},
    "bench": LEAVES | KERNELS | {"forebay", "checkpoint", "locations", "s3"},  # measures the store over the wire, as any client
    "cli": LEAVES | {"forebay", "checkpoint", "locations", "bench", "server", "s3"},
}

FUNCTION_LINES_MAX = 70  # without the docstring
FILE_LINES_MAX = 600
# Longer than allowed when the rule came, with their length then. They may shrink and leave this table; nothing may enter it.
LONG_FUNCTIONS: dict[str, int] = {}
LONG_FILES: dict[str, int] = {}

OPTIONAL_FRAMEWORKS = {"jax", "torch", "tensorstore", "orbax", "lightning", "transformers", "safetensors"}
FRAMEWORKS = OPTIONAL_FRAMEWORKS | {"jaxlib", "equinox", "optax", "numpy", "obstore"}
STORE = {"forebay.server", "forebay.engine", "forebay.drive", "lmdb", "uvloop", "cryptography"}


class Import(NamedTuple):
    """One first-party import. `deferred`: inside a function; `typing_only`: under `if TYPE_CHECKING`."""

    importer: str
    imported: str
    line: int
    deferred: bool
    typing_only: bool


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {_module_name(path): ast.parse(path.read_bytes()) for path in sorted(SOURCE.rglob("*.py"))}


def _targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that an import statement names; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, "first-party imports are absolute"
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        yield full if full in TREES else str(node.module)


def _walk(node: ast.AST, deferred: bool = False, typing_only: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, deferred, typing_only
            continue
        inside = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _walk(child, inside, typing_only or guard)


def _imports() -> list[Import]:
    return [
        Import(module, target, node.lineno, deferred, typing_only)
        for module, tree in TREES.items()
        for node, deferred, typing_only in _walk(tree)
        for target in _targets(node)
        if target.split(".")[0] == "forebay"
    ]


IMPORTS = _imports()


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "forebay"


def test_every_room_is_on_the_plan() -> None:
    assert {_room(module) for module in TREES} == set(ROOMS)


def test_arrows_between_rooms_point_one_way() -> None:
    wrong = [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in IMPORTS
        if _room(each.importer) != _room(each.imported) and _room(each.imported) not in ROOMS[_room(each.importer)]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_plan_of_the_rooms_has_no_cycle() -> None:
    graphlib.TopologicalSorter(ROOMS).prepare()


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in TREES}
    for each in IMPORTS:
        # A package's __init__ may import its own modules, and they each other: only module to module counts there.
        if not each.typing_only and each.importer != each.imported:
            graph[each.importer].add(each.imported)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def _needs_a_framework(module: str) -> bool:
    """Whether a module cannot be imported without an optional framework."""
    imported = {
        target.split(".")[0]
        for node, deferred, typing_only in _walk(TREES[module])
        if not deferred and not typing_only
        for target in _targets(node)
    }
    return bool(imported & OPTIONAL_FRAMEWORKS)


def test_no_first_party_import_hides_in_a_function() -> None:
    hidden = [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in IMPORTS
        if each.deferred and not _needs_a_framework(each.imported)
    ]
    assert not hidden, "\n".join(hidden)


def test_what_is_imported_is_declared() -> None:
    """Whatever a module imports when it is imported comes with `pip install`, unless the module is for users of a framework."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[<>=~! ]", each)[0].replace("-", "_") for each in project["dependencies"]}
    known = declared | sys.stdlib_module_names | {"forebay"}
    missing = {
        f"{module} imports {target}"
        for module, tree in TREES.items()
        if not _needs_a_framework(module) and not module.endswith(".testing")  # those kits are for who has pytest
        for node, deferred, typing_only in _walk(tree)
        if not deferred and not typing_only
        for target in _targets(node)
        if target.split(".")[0] not in known
    }
    assert not missing, "\n".join(sorted(missing))


def _functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(qualified name, lines of the body without the docstring)."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                yield prefix + child.name, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    return visit(tree, "")


def test_functions_fit_a_screen() -> None:
    found = {f"{module}:{name}": lines for module, tree in TREES.items() for name, lines in _functions(tree) if lines > FUNCTION_LINES_MAX}
    grown = {name: lines for name, lines in found.items() if lines > LONG_FUNCTIONS.get(name, FUNCTION_LINES_MAX)}
    assert not grown, f"longer than {FUNCTION_LINES_MAX} lines: {grown}"
    assert set(LONG_FUNCTIONS) <= set(found), "shorter now; take them out of LONG_FUNCTIONS"


def test_files_have_one_subject() -> None:
    lines = {_module_name(path): len(path.read_bytes().splitlines()) for path in SOURCE.rglob("*.py")}
    found = {name: count for name, count in lines.items() if count > FILE_LINES_MAX}
    grown = {name: count for name, count in found.items() if count > LONG_FILES.get(name, FILE_LINES_MAX)}
    assert not grown, f"longer than {FILE_LINES_MAX} lines: {grown}"
    assert set(LONG_FILES) <= set(found), "shorter now; take them out of LONG_FILES"


def _loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    report = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", report], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(ended.stdout.splitlines()[-1]))


def _below(loaded: set[str], roots: set[str]) -> set[str]:
    return {module for module in loaded if any(module == root or module.startswith(f"{root}.") for root in roots)}


def test_importing_the_public_face_loads_next_to_nothing() -> None:
    loaded = _loaded_by("import forebay")
    assert _below(loaded, {"forebay"}) == {"forebay", "forebay._version"}
    assert not _below(loaded, FRAMEWORKS | STORE | {"msgspec", "typer", "rich"})


def test_the_library_never_loads_the_store() -> None:
    loaded = _loaded_by("import forebay\nfrom forebay import load, save")
    assert not _below(loaded, STORE)
    assert not _below(loaded, {"jax", "torch", "tensorstore"})


@pytest.mark.parametrize("command", ["--help", "version", "drive --help", "cluster status --help"])
def test_light_commands_load_neither_frameworks_nor_the_server(command: str) -> None:
    code = f"import forebay.cli\nassert forebay.cli.main({command.split()!r}) == 0"
    assert not _below(_loaded_by(code), FRAMEWORKS | STORE)
