"""Lock, environment, configuration and the import of the package."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from momentdp import chapters


def lock_entries(root) -> dict[str, str]:
    """Name -> the whole entry of the lock, hashes included."""
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^([A-Za-z0-9._-]+)==((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): rest for name, rest in entries}


def test_lock_has_hashes_and_no_addresses(root):
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    entries = lock_entries(root)
    assert len(entries) > 150
    assert [name for name, rest in entries.items() if "--hash=sha256:" not in rest] == []
    stray = [line for line in text.splitlines() if not re.match(r"[\w.-]+==|    --hash=|#", line)]
    assert stray == []


def test_lock_pins_each_dependency_once(root):
    """One scientific version on all three Pythons: an entry split by markers would give two."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    text = (root / "requirements.lock").read_text(encoding="utf-8").lower()
    for requirement in wanted:
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
        assert len(re.findall(rf"^{name}==", text, re.MULTILINE)) == 1, requirement
    assert re.search(r"^jupyter-book==1\.", text, re.MULTILINE)  # 2.x has no _config.yml


def test_environment_agrees_with_lock_and_project(root):
    environment = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    python = next(entry for entry in conda if entry.startswith("python="))
    assert sorted(conda) == ["pip", python]  # nothing scientific comes from conda
    assert pip == ["-r requirements.lock"]  # each version is the lock's
    version = tuple(int(part) for part in python.removeprefix("python=").split("."))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert (3, 11) <= version < (3, 14)
    post_build = root / "postBuild"
    assert post_build.stat().st_mode & 0o100
    assert "--no-deps --no-build-isolation -e ." in post_build.read_text(encoding="utf-8")


def test_launch_and_table_of_contents_name_files_that_exist(root):
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    files = [contents["root"]]
    files += [entry["file"] for part in contents["parts"] for entry in part["chapters"]]
    assert len(files) == len(set(files))
    for file in files:
        found = [suffix for suffix in (".md", ".ipynb") if (root / f"{file}{suffix}").is_file()]
        assert len(found) == 1, file
    shown = {file for file in files if file.startswith("notebooks/")}
    assert shown == {f"notebooks/{path.stem}" for path in (root / "notebooks").glob("*.ipynb")}


def test_commands_in_the_text_name_chapters_and_parameters_that_exist(root):
    texts = [root / "README.md", *sorted((root / "book").glob("*.md"))]
    commands = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    found = re.findall(r"momentdp run ([a-z0-9_]+)(.*)", commands)
    assert len(found) >= 3
    for chapter, options in found:
        names = re.findall(r"-p (\w+)", options)
        assert set(names) <= set(chapters.chapter_parameters(chapter)), (chapter, names)


IMPORT = """
import importlib, logging, os, pkgutil, random, sys, warnings
import dp_accounting, jax, jax_privacy, matfree, matplotlib, numpy, optax, pandas, scipy, sklearn
import matplotlib.pyplot, scipy.linalg, scipy.optimize, sklearn.datasets

def state():
    return {
        "jax": {name: getattr(jax.config, name, None) for name in sorted(jax.config.values)},
        "matplotlib": dict(matplotlib.rcParams),
        "warnings": list(warnings.filters),
        "numpy": (numpy.geterr(), numpy.get_printoptions(), numpy.random.get_state()[1].tolist()),
        "random": random.getstate(),
        "pandas": {key: pandas.get_option(key) for key in ("display.precision", "mode.copy_on_write")},
        "environment": dict(os.environ),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "path": list(sys.path),
        "folder": os.getcwd(),
    }

before = state()
import momentdp
names = [m.name for m in pkgutil.walk_packages(momentdp.__path__, "momentdp.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
after = state()
changed = [key for key in before if before[key] != after[key]]
print(len(names), changed)
sys.exit(bool(changed) or len(names) < 5)
"""


@pytest.mark.parametrize("x64", ["0", "1"])
def test_importing_the_package_changes_no_global_state(x64, tmp_path):
    environment = {"JAX_ENABLE_X64": x64, "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_the_example_of_the_readme_runs(root, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert len(example.splitlines()) <= 10
    names: dict[str, object] = {}
    exec(example, names)
    ranked = capsys.readouterr().out
    assert "damage" in ranked and "made for it" in ranked
