"""The house keeps its order: what a room may import, and how large rooms, files and functions may be."""

import ast
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import laconic

PACKAGE = Path(laconic.__file__).parent
LIBRARY = ["numerics", "kernels", "core", "messages", "layers", "techniques", "places", "engine", "sources"]
TOP = ""
TOOLS = ["lab", "report", "plan", "studies", "cli"]
ROOMS = [*LIBRARY, TOP, *TOOLS]
"""From top to bottom: each imports itself and rooms above it. TOP is the package's own folder."""
MOST_MODULES = 16
MOST_LINES = 400
MEDIAN_BODY, LONG_BODY = 6, 16
"""Lines of a function without its docstring: of half of them at most, and of nine in ten."""

MODULES = {path.relative_to(PACKAGE): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def _room(dotted: str) -> str:
    """The room of a name such as laconic.core.blocks; TOP where it is no folder of the package."""
    part = dotted.split(".")[1] if "." in dotted else TOP
    return part if (PACKAGE / part).is_dir() else TOP


def _imported(node: ast.AST) -> list[str]:
    """All that the statement imports, wherever in a file it stands: under TYPE_CHECKING and in functions, too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_every_folder_is_a_room():
    folders = {name.parts[0] for name in MODULES if len(name.parts) > 1}
    assert folders == {room for room in ROOMS if room != TOP}


def test_a_room_imports_only_rooms_above_it():
    found = [
        f"laconic/{name}, line {node.lineno}: {room or 'the top level'} imports {target}"
        for name, tree in TREES.items()
        for room in [name.parts[0] if len(name.parts) > 1 else TOP]
        for node in ast.walk(tree)
        for target in _imported(node)
        if target.split(".")[0] == "laconic" and ROOMS.index(_room(target)) > ROOMS.index(room)
    ]
    assert not found, "\n".join(found)


def test_imports_say_their_whole_name():
    relative = [
        str(name)
        for name, tree in TREES.items()
        if any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))
    ]
    assert relative == []


def test_no_room_is_crowded():
    modules = Counter(name.parent for name in MODULES if name.name != "__init__.py")
    assert {str(room): count for room, count in modules.items() if count > MOST_MODULES} == {}


def test_no_file_is_long():
    lines = {str(name): len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return statements[-1].end_lineno - statements[0].lineno + 1 if statements else 0


def test_functions_are_short():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [_body(node) for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, kinds)]
    assert statistics.median(bodies) <= MEDIAN_BODY
    assert statistics.quantiles(bodies, n=10)[-1] <= LONG_BODY


def test_a_rooms_first_file_only_says_what_it_is_for():
    more = [
        str(name)
        for name, tree in TREES.items()
        if name.name == "__init__.py" and len(name.parts) > 1 and name.parts[0] != "kernels"
        if ast.get_docstring(tree) is None or len(tree.body) > 1
    ]
    assert more == []


def test_the_library_is_imported_without_its_tools():
    code = "import sys, laconic; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    apart = ("benchmarks", *(f"laconic.{room}" for room in TOOLS))
    assert [name for name in done.stdout.split() if name.startswith(apart)] == []
