"""CONTRIBUTING's map of the package is true: every file is on it, and imports point upwards only."""

from __future__ import annotations

from import_graph import SOURCE, drawn_map, imports, modules, the_map

MAP = the_map()
MODULES = modules()


def place(name: str) -> int:
    """The line of a module; of a package, which stands for all that is in it, its last line."""
    path = MODULES[name].relative_to(SOURCE)
    if path.name != "__init__.py":
        return MAP[str(path)]
    below = "" if path.parent.name == "" else f"{path.parent}/"
    return max(line for file, line in MAP.items() if file.startswith(below)) if below else -1


def test_every_file_is_on_the_map_and_every_file_of_the_map_exists():
    files = {str(path.relative_to(SOURCE)) for path in MODULES.values() if path.name != "__init__.py"}
    assert not (missing := files - set(MAP)), f"add them to the map in CONTRIBUTING.md: {sorted(missing)}"
    assert not (gone := set(MAP) - files), f"they are on the map in CONTRIBUTING.md, but not in src: {sorted(gone)}"


def test_every_module_imports_only_what_stands_above_it_on_the_map_or_beside_it():
    wrong = []
    for name, path in MODULES.items():
        if path.name == "__init__.py":  # it gathers the names of its own room, which stand below it in any order
            continue
        wrong += [f"{name} imports {other}" for other in imports(path, MODULES) if place(other) > place(name)]
    assert not wrong, f"move them on the map, or better, in the code: {wrong}"


def test_a_packages_own_file_imports_nothing_below_its_room():
    wrong = []
    for name, path in MODULES.items():
        if path.name == "__init__.py" and name != "unhinge":
            wrong += [f"{name} imports {other}" for other in imports(path, MODULES) if place(other) > place(name)]
    assert not wrong


def test_the_map_notices_an_import_that_points_down():
    """The test above can fail: on the map upside down, it would."""
    lines = {file: -line for file, line in MAP.items()}
    path = SOURCE / "cli" / "app.py"
    assert any(
        lines[str(MODULES[other].relative_to(SOURCE))] > lines["cli/app.py"]
        for other in imports(path, MODULES)
        if MODULES[other].name != "__init__.py"
    )


def test_a_map_is_read_as_it_is_drawn():
    text = "src/unhinge/   all\n  theory/   exact\n    linear/ a.py, b.py   modes\n    c.py   rest\n  d.py\n"
    assert drawn_map(text) == {"theory/linear/a.py": 2, "theory/linear/b.py": 2, "theory/c.py": 3, "d.py": 4}
