"""What users install: built from the tracked files, it holds the package and nothing else, and works on its own."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import unhinge
from unhinge.extras import EXTRA_OF

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 1_000_000  # bytes; 662,000 when this was written: code and its words, no data
PACKAGES = sorted(
    ".".join(("unhinge", *file.parent.relative_to(ROOT / "src" / "unhinge").parts))
    for file in (ROOT / "src" / "unhinge").rglob("__init__.py")
)


# ---- one version, said everywhere ----------------------------------------------------------------------------------


def test_the_version_is_semantic_and_the_same_everywhere():
    version = unhinge.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", version)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert version in newest.groups()


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert all(
        re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\]( - (\d{4}-\d\d-\d\d|\d+\.\d+\.\d+))?", head) for head in heads
    )
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_pin_is_asked_for_and_all_that_is_asked_for_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {_name(line) for line in [*project["dependencies"], *(one for extra in extras.values() for one in extra)]}
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert wanted - {"unhinge"} <= pinned, "add to constraints.txt"
    # Brought along by others, and pinned because a wrong one breaks us.
    assert pinned - wanted <= {"plotly", "pytorch-lightning", "torchmetrics"}
    assert "torchvision" not in wanted | pinned
    # What users can ask for is in [all], and development has all of it.
    assert _extras_in(extras["all"]) == set(extras) - {"all", "docs", "integrations", "dev"}
    assert {"all", "docs"} == _extras_in(extras["dev"])


def _extras_in(requirements: list[str]) -> set[str]:
    listed = [re.match(r"unhinge\[(.*)\]", line) for line in requirements]
    return {name for found in listed if found for name in found[1].split(",")}


# ---- a lean core ---------------------------------------------------------------------------------------------------


def test_the_core_asks_for_torch_and_numpy_only():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {_name(line) for line in project["dependencies"]} == {"torch", "numpy"}


def test_every_other_import_belongs_to_an_extra():
    """What an import statement of the package names is torch, numpy, or stands with its extra in extras.py."""
    known = {"torch", "numpy", "unhinge", "__future__", *EXTRA_OF, *sys.stdlib_module_names}
    actual = {
        (name.partition(".")[0], str(file.relative_to(ROOT)))
        for file in (ROOT / "src").rglob("*.py")
        for name in _imports(file)
    }
    assert {(name, file) for name, file in actual if name not in known} == set()


def _imports(file: Path) -> list[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for block in ast.walk(tree):  # what only a type checker imports, no one has to install
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            block.body = []
    nodes = list(ast.walk(tree))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]


@pytest.mark.parametrize("module", sorted(EXTRA_OF))
def test_the_extra_named_in_the_error_brings_the_package(module):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought, waiting = set(), [EXTRA_OF[module]]
    while waiting:
        extra = waiting.pop()
        brought |= {_name(line) for line in extras[extra]}
        waiting += _extras_in(extras[extra])
    distributions = {_name(one) for one in importlib.metadata.packages_distributions().get(module, [])}
    if not distributions:
        pytest.skip(f"{module} is not installed, so its distribution is not known")
    along = {"dash": {"flask", "plotly", "werkzeug"}, "matplotlib": {"fonttools"}}  # what others bring
    assert distributions & brought.union(*(along.get(name, set()) for name in brought))


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


# ---- wheel and sdist -----------------------------------------------------------------------------------------------


def run(*command: object, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a neutral folder, without the paths of this test run."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of a copy of the tracked files, and the wheel that the sdist gives."""
    pytest.importorskip("build", reason="pip install build")
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in _tracked():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    # Without --wheel or --sdist the wheel is made from the sdist, which is what an index hands out.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree, where=dist)
    direct = tmp_path_factory.mktemp("direct")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", direct, tree, where=direct)
    return {"wheel": next(dist.glob("*.whl")), "sdist": next(dist.glob("*.gz")), "direct": next(direct.glob("*.whl"))}


def _tracked() -> list[str]:
    """What git tracks or would; in an unpacked sdist, everything."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "src", "tests", *_FILES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name]
    return [
        str(path.relative_to(ROOT)) for part in ("src", *_FILES) for path in [ROOT / part, *(ROOT / part).rglob("*")]
    ]


_FILES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    ".gitignore",
    "constraints.txt",
    "docs",
)


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
    about = f"unhinge-{unhinge.__version__}.dist-info/"
    assert all(name.startswith(("unhinge/", about)) for name in names)
    tracked = {name.removeprefix("src/") for name in _tracked() if name.startswith("src/unhinge/")}
    assert {name for name in names if name.startswith("unhinge/")} == {
        n for n in tracked if (ROOT / "src" / n).is_file()
    }
    assert "unhinge/py.typed" in names
    assert about + "licenses/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".so", ".ipynb", ".npz", ".safetensors"))]


def test_the_wheel_stays_small(built):
    assert built["wheel"].stat().st_size < LARGEST_WHEEL


def test_the_sdist_gives_the_same_wheel_as_the_tree(built):
    contents = []
    for key in ("wheel", "direct"):
        with zipfile.ZipFile(built[key]) as wheel:
            contents.append({name: wheel.read(name) for name in wheel.namelist()})
    assert contents[0] == contents[1]
    with tarfile.open(built["sdist"]) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert {"LICENSE", "CHANGELOG.md", "pyproject.toml", "src/unhinge/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("results/", ".venv/", "data/"))]


def test_the_metadata_say_what_it_is(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        about = f"unhinge-{unhinge.__version__}.dist-info/"
        metadata = email.message_from_bytes(wheel.read(about + "METADATA"))
        entry_points = wheel.read(about + "entry_points.txt").decode()
    assert metadata["Name"] == "unhinge"
    assert metadata["Version"] == unhinge.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert {"cli", "plot", "sklearn", "train", "web", "all"} <= set(metadata.get_all("Provides-Extra", []))
    always = {_name(line) for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert always == {"torch", "numpy"}
    assert "unhinge = unhinge.__main__:main" in entry_points


# ---- installed -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it.

    The dependencies are those of this one, seen through a path file; its own path files, by which an editable install
    would be found, are not read there.
    """
    return _installed(built["wheel"], tmp_path_factory.mktemp("installed"), Path(sysconfig.get_path("purelib")))


def _installed(wheel: Path, place: Path, dependencies: Path) -> Path:
    """The interpreter of a new environment with the wheel, which finds everything else in one folder."""
    run(sys.executable, "-m", "venv", "--without-pip", place / "env", where=place)
    inside = place / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = (sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, where=place)
    found = next((place / "env").rglob("site-packages"))
    (found / "dependencies.pth").write_text(f"{dependencies}\n")
    return inside


@pytest.fixture
def code(python: Path, tmp_path: Path) -> Callable[[str], str]:
    return lambda text: run(python, "-c", text, where=tmp_path).stdout


def test_the_installed_package_is_the_wheel_and_every_part_imports(code, python):
    lines = "\n".join(f"import {name}" for name in PACKAGES)
    where = code(f"{lines}\nprint(unhinge.__file__)").strip()
    assert Path(where).is_relative_to(python.parents[1])
    assert not Path(where).is_relative_to(ROOT)


FIVE_LINES = """
import torch
from unhinge import LayerPeeled

labels = torch.arange(4).repeat_interleave(3)
features, weight = torch.eye(12, 8).double(), torch.eye(4, 8).double()
number = LayerPeeled(labels, 4).flow(features, weight, lr=0.1).log_norm(10**12).item()
"""


def test_five_lines_give_the_same_exact_path(code):
    scope: dict[str, float] = {}
    exec(FIVE_LINES, scope)
    assert 0 < scope["number"] < float("inf")
    assert float(code(FIVE_LINES + "print(repr(number))")) == scope["number"]


def test_the_command_answers(python, tmp_path):
    command = python.with_name("unhinge")
    assert run(command, "--version", where=tmp_path).stdout == f"unhinge {unhinge.__version__}\n"
    assert "erratum" in run(command, "verify", "--help", where=tmp_path).stdout
    assert run(python, "-m", "unhinge", "--version", where=tmp_path).stdout == f"unhinge {unhinge.__version__}\n"


# ---- installed without any extra -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lean(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, torch, numpy, what these two require, and nothing else.

    The packages are links to the ones in use here, so it needs no network and no copy of torch.
    """
    place = tmp_path_factory.mktemp("lean")
    packages = place / "packages"
    packages.mkdir()
    waiting, seen = ["torch", "numpy"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # a requirement of another platform
            continue
        waiting += [_name(line) for line in distribution.requires or [] if "extra ==" not in line]
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if top != "__pycache__":
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return _installed(built["wheel"], place, packages)


@pytest.fixture
def lean_code(lean: Path, tmp_path: Path) -> Callable[[str], str]:
    return lambda text: run(lean, "-c", text, where=tmp_path).stdout


def test_the_lean_environment_has_torch_and_numpy_and_no_package_of_an_extra(lean_code):
    actual = lean_code(
        f"import importlib.util as u\nprint([name for name in {sorted(EXTRA_OF)} + ['torch', 'numpy']"
        " if u.find_spec(name)])"
    )
    assert ast.literal_eval(actual) == ["torch", "numpy"]


LEAN = (ROOT / "tests" / "lean_program.py").read_text(encoding="utf-8")


def test_the_core_works_with_torch_and_numpy_only(lean_code):
    assert lean_code(LEAN) == "done\n"


DOORS = {
    "from unhinge.metrics import reliability, reliability_diagram\n"
    "reliability_diagram(reliability(torch.tensor([[0.9, 0.1]]), torch.tensor([0])))": "plot",
    "from unhinge.nn import prototypes\nprototypes(40, 4)": "scipy",
    "from unhinge.nn.bounds import angle_bound\nangle_bound(40, 4)": "scipy",
    "import unhinge.sklearn": "sklearn",
    "from unhinge.data import load\nload('digits')": "sklearn",
    "from pathlib import Path\nfrom unhinge.training.checkpoint import write_tensors\n"
    "write_tensors(Path('a.safetensors'), {}, {})": "train",
    "from pathlib import Path\nfrom unhinge.prediction import read_features\nPath('a.safetensors').touch()\n"
    "read_features('a.safetensors')": "train",
    "from unhinge.training import processes\nprocesses(2, 'ddp', 'cpu')": "train",
}


@pytest.fixture(scope="module")
def told(lean: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of the programs ends with, all of them asked in one interpreter."""
    program = (
        "import torch\nfrom unhinge.extras import MissingExtra\ntold = {}\n"
        f"for door in {list(DOORS)!r}:\n    try:\n        exec(door)\n"
        "    except MissingExtra as error:\n        told[door] = str(error)\nprint(told)"
    )
    found = run(lean, "-c", program, where=tmp_path_factory.mktemp("doors")).stdout
    return ast.literal_eval(found)


@pytest.mark.parametrize("program", DOORS, ids=[line.splitlines()[-1] for line in DOORS])
def test_what_is_missing_is_named_with_the_line_that_installs_it(told, program):
    assert told[program].endswith(f'which is not installed: pip install "unhinge[{DOORS[program]}]"')


def test_the_command_without_its_extra_says_so_in_one_line(lean, tmp_path):
    for command in ([lean.with_name("unhinge")], [lean, "-m", "unhinge"]):
        done = subprocess.run([*command, "verify"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == (
            'unhinge: this command needs typer, which is not installed: pip install "unhinge[cli]"\n'
        )


# ---- types, as a user's checker sees them --------------------------------------------------------------------------

RIGHT = """
import torch
from torch import Tensor, nn

from unhinge import LayerPeeled, Spherical, State, cosine
from unhinge.metrics import expected_calibration_error, neural_collapse, ood_metrics
from unhinge.nn import ETFHead, FeatureNormPenalty, RescaledGradient, UnhingedLoss, class_weights, simplex_etf
from unhinge.nn import functional as UF
from unhinge.training import Recipe


def path_of(target: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, State]:
    problem = LayerPeeled(target, 4, gamma=None, feature_decay=1e-3, class_weight="sqrt")
    path = problem.descent(features, weight, lr=cosine(0.1, 100), momentum=0.9)
    decay: Tensor = problem.critical_decay
    measures: dict[str, Tensor] = path.collapse(3)
    assert decay.ndim == 0 and measures
    sphere = Spherical(target, weight).descent(features, lr=0.1, rescaled=True)
    state: State = sphere.at(torch.tensor([1, 2]))
    return path.loss(torch.tensor([0, 1])), path.time_to(0.1), state


def step(model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
    head = ETFHead(16, 4, normalize=True)
    penalty = FeatureNormPenalty(1e-3)
    features: Tensor = RescaledGradient()(model(images))
    weight: Tensor = simplex_etf(4, 16)
    exact: Tensor = UF.unhinged_loss_from_features(features, weight, target)
    loss: Tensor = UnhingedLoss(weight=class_weights(torch.bincount(target)))(head(features), target)
    total: Tensor = loss + penalty(features) + exact
    return total


def measured(features: Tensor, weight: Tensor, target: Tensor) -> float:
    neural_collapse(features, weight, target)
    return ood_metrics(features[:, 0], features[:, 1])["auroc"] + float(expected_calibration_error(features, target))


def named(recipe: Recipe) -> str:
    return recipe.key
"""
WRONG = {
    'LayerPeeled(torch.arange(4), "four")': "arg-type",
    "LayerPeeled(torch.arange(4), 4, gama=0.1)": "call-arg",
    "LayerPeeled(torch.arange(4), 4).flow(torch.eye(4), torch.eye(4)).lossy(1)": "attr-defined",
    "LayerPeeled(torch.arange(4), 4).flow(1.0, torch.eye(4))": "arg-type",
    'Recipe(loss="cross-entropy")': "arg-type",
    "ETFHead(16)": "call-arg",
    "UnhingedLoss(gamma='a')": "arg-type",
}


@pytest.fixture(scope="module")
def checked(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What mypy --strict says of a program that uses the installed package."""
    pytest.importorskip("mypy", reason="pip install mypy")
    place = tmp_path_factory.mktemp("typed")

    def check(text: str) -> list[str]:
        (place / "program.py").write_text(text)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--no-color-output",
                "--python-executable",
                python,
                "program.py",
            ],
            cwd=place,
            capture_output=True,
            text=True,
            env={key: value for key, value in os.environ.items() if key not in ("MYPYPATH", "PYTHONPATH")},
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "error:" in line]

    return check


def test_a_users_program_is_checked_against_the_installed_types(checked):
    assert checked(RIGHT) == []
    program = RIGHT + "\n" + "\n".join(WRONG)
    actual = checked(program)
    first = program.count("\n") + 1 - (len(WRONG) - 1)
    for number, (line, kind) in enumerate(WRONG.items()):
        said = [error for error in actual if error.startswith(f"program.py:{first + number}:")]
        assert any(error.endswith(f"[{kind}]") for error in said), (line, said)
    assert len({error.split(":")[1] for error in actual}) == len(WRONG)
