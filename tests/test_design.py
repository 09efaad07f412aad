"""The page on the design names every module, and imports go up it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "packtool"
ROWS = re.findall(r"^\| (`[a-z].*?) \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
NAMED = [name.removesuffix("/") for row in ROWS for name in re.findall(r"`([a-z_]+/?)`", row)]
"""Modules and packages, in the order of the table."""


def test_every_module_is_in_the_table_once() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(NAMED) == sorted(modules | packages)


def test_a_module_imports_only_what_stands_above_it() -> None:
    place = {name: index for index, name in enumerate(NAMED)}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {target}"
        for path in PACKAGE.rglob("*.py")
        if (home := path.relative_to(PACKAGE).parts[0].removesuffix(".py")) in place
        for target in imported(path)
        if target != home and place.get(target, -1) >= place[home]
    ]
    assert not wrong


def imported(path: Path) -> set[str]:
    """The modules and packages of packtool that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "packtool":
            found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("packtool."):
            found.add(str(node.module).split(".")[1])
    return found
