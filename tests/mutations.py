"""Do the tests bite? `python tests/mutations.py` changes one thing at a time and looks for red.

On a copy of the tree: one digit of a stored chapter, one constant in each module of momentdp, one
byte of the crossover registry, one value of the ledger, one digit of a record. After each change only
the test file that owns the changed file runs; it was green before. The score is the share of changes
that turned it red. Changes are drawn by `--seed`; `--only TEXT` keeps the cases with TEXT in their
name, `--list` only names them. All of them take hours on two cores; no test runs this.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 1800
# Modules without a test file of their own name, or one of which a part is enough: who owns them.
OWNERS = {
    "_checks": "test_checks.py",
    "_yaml": "test_cli.py",
    "cli": "test_cli.py tests/tool/test_command.py",
    "chapters": "test_chapters.py -k not another_setting",
    "dynamics/core": "dynamics/test_transfer.py",
    "dynamics/literal": "dynamics/test_transfer.py",
    "mechanisms/constructions": "mechanisms/test_catalogue.py",
    "mechanisms/store": "mechanisms/test_catalogue.py",
    "mechanisms/": "mechanisms/test_structures.py tests/mechanisms/test_mechanism.py",
    "studies/boundary": "studies/test_boundary.py",
    "studies/cnn_": "studies/test_cnn_study.py",
    "studies/cnn_live": "studies/test_cnn.py",
    "studies/images": "studies/test_cnn_images.py",
    "studies/network": "studies/test_cnn.py",
    "studies/logistic_tables": "studies/test_logistic_tables.py notebooks/06_logistic.ipynb",
    "studies/logistic_task": "studies/test_logistic.py",
    "studies/panel": "studies/test_controlled_grid.py",
    "studies/quadratic_tables": "studies/test_controlled_grid.py",
    "studies/solver_runs": "studies/test_solvers.py",
    "studies/simulator": "studies/test_simulator.py tests/studies/test_registry.py",
    "studies/validation": "studies/test_registry.py",
    "synthesis/blocks": "synthesis/test_banded.py",
    "synthesis/certificate": "synthesis/test_dense.py",
    "synthesis/problem": "synthesis/test_banded.py",
    "tool/designs": "tool/test_choice.py",
    "tool/export": "tool/test_export.py tests/tool/test_choice.py",
    "tool/html": "tool/test_command.py",
    "tool/sweep": "tool/test_choice.py",
    "tool/words": "tool/test_choice.py",
    "tool/": "tool/test_runfile.py",
}


class Case(NamedTuple):
    """A change to one file, and the tests that have to notice."""

    name: str
    path: str
    change: Callable[[bytes], tuple[bytes, str]]
    tests: str


def other_digit(text: str) -> str:
    return str((int(text) + 1) % 10)


def one_constant(source: bytes, draw: random.Random) -> tuple[bytes, str]:
    """A number in the body of a function, changed: an int by one, a float by a tenth."""
    tree = ast.parse(source)
    inside = {
        id(node): node
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }.values()
    found = [
        node
        for node in inside
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    ]
    if not found:
        raise LookupError("no number in a function")
    node = draw.choice(sorted(found, key=lambda node: (node.lineno, node.col_offset)))
    value = node.value + 1 if isinstance(node.value, int) else node.value * 1.1 or 0.1
    lines = source.splitlines(keepends=True)
    line = lines[node.lineno - 1]
    lines[node.lineno - 1] = (
        line[: node.col_offset] + repr(value).encode() + line[node.end_col_offset :]
    )
    return b"".join(lines), f"line {node.lineno}: {node.value} -> {value}"


def one_match(source: bytes, draw: random.Random, pattern: bytes) -> tuple[bytes, str]:
    """The last digit of something that the pattern finds, changed."""
    place = draw.choice([match.end() for match in re.finditer(pattern, source)]) - 1
    new = other_digit(chr(source[place])).encode()
    changed = source[:place] + new + source[place + 1 :]
    return changed, f"...{source[max(0, place - 25) : place + 1]!r} -> {new.decode()}"


def one_byte(source: bytes, draw: random.Random) -> tuple[bytes, str]:
    place = draw.randrange(len(source))
    changed = source[:place] + bytes([source[place] ^ 1]) + source[place + 1 :]
    return changed, f"byte {place}"


def owner(module: str) -> str | None:
    """The test file of a module of momentdp, relative to the root; ` -k ` chooses among its tests."""
    if module in OWNERS:
        return f"tests/{OWNERS[module]}"
    mirrored = Path("tests", module).with_name(f"test_{Path(module).name}.py")
    if (ROOT / mirrored).is_file():
        return str(mirrored)
    fitting = [start for start in OWNERS if module.startswith(start)]
    return f"tests/{OWNERS[max(fitting, key=len)]}" if fitting else None


def cases(seed: int) -> list[Case]:
    """All changes of one seed."""

    def drawn(name: str, change, *arguments):
        return lambda source: change(source, random.Random(f"{seed} {name}"), *arguments)

    found = []
    printed = rb'"text": \[\s*"[^"\n]*?\d\.\d+'
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if re.search(printed, path.read_bytes()):
            name, file = f"notebook {path.stem}", str(path.relative_to(ROOT))
            found.append(Case(name, file, drawn(name, one_match, printed), file))
    for path in sorted((ROOT / "momentdp").rglob("*.py")):
        file = path.relative_to(ROOT)
        module = str(file.relative_to("momentdp").with_suffix(""))
        tests = None if path.name.startswith("__") else owner(module)
        if tests:
            name = f"module {module}"
            found.append(Case(name, str(file), drawn(name, one_constant), tests))
    data = "momentdp/data"
    for file in ("registry.json", "arrays.npz"):
        name, tests = f"registry {file}", "tests/studies/test_registry.py"
        found.append(Case(name, f"{data}/registry/{file}", drawn(name, one_byte), tests))
    # The first digit that counts: the last of six may differ between machines.
    value = rb"(?m)^[a-z][\w.]*,-?0?\.?0*[1-9]"
    name, tests = "ledger ours.csv", "tests/test_ledger.py"
    found.append(Case(name, f"{data}/ours.csv", drawn(name, one_match, value), tests))
    tests = "tests/studies/test_records.py"  # each file against its manifest
    for study in ("boundary", "cnn", "logistic", "solvers"):
        files = sorted((ROOT / "results" / study).glob("*[-.]*.json"))
        if files:
            name = f"record {study}"  # the first decimal: a seventeenth digit may be no change
            path = str(random.Random(f"{seed} {name}").choice(files).relative_to(ROOT))
            found.append(Case(name, path, drawn(name, one_match, rb"\d\.\d"), tests))
    return found


def copy_tree(target: Path) -> None:
    """Tracked files and new ones that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def is_green(tree: Path, tests: str) -> bool:
    """Whether the tests pass in the copy, which shadows the installed package."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    # Compiled functions are kept by their content, which a change alters with them.
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(tree / ".jax"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    file, _, chosen = tests.partition(" -k ")
    command += [*file.split(), "-k", chosen] if chosen else file.split()
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False  # a change that makes a loop endless is noticed too
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"{tests}: pytest ended with {done.returncode}\n{done.stdout.decode()}")
    return done.returncode == 0


def run(chosen: list[Case]) -> tuple[int, int]:
    """(changes noticed, changes made); each result is printed as it comes."""
    noticed = made = 0
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="momentdp-mutations-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for case in chosen:
            target = tree / case.path
            original = target.read_bytes()
            try:
                changed, what = case.change(original)
            except LookupError as reason:
                print(f"{case.name:32} left out: {reason}", flush=True)
                continue
            if case.tests not in sound:
                sound[case.tests] = is_green(tree, case.tests)
            if not sound[case.tests]:
                print(f"{case.name:32} left out: {case.tests} is red before it", flush=True)
                continue
            target.write_bytes(changed)
            survived = is_green(tree, case.tests)
            target.write_bytes(original)
            made, noticed = made + 1, noticed + (not survived)
            print(f"{case.name:32} {'SURVIVED' if survived else 'noticed '} {what}", flush=True)
    return noticed, made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [case for case in cases(options.seed) if any(t in case.name for t in options.only)]
    if options.list:
        print("\n".join(f"{case.name:32} {case.path} -> {case.tests}" for case in chosen))
        return 0
    noticed, made = run(chosen)
    print(f"score: {noticed} of {made} changes noticed")
    return 0 if noticed == made else 1


if __name__ == "__main__":
    sys.exit(main())
