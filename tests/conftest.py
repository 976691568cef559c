"""Shared by all tests.

`momentdp` is never imported at the top of a conftest: the jaxtyping flag in pyproject.toml has to
see its first import to check the shapes in its signatures.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Constructions are cached by content. Tests and the chapters that they run share an empty cache of
# their own, made once (the workers inherit it): a fresh clone and this machine then do the same.
if "MOMENTDP_CACHE" not in os.environ:
    os.environ["MOMENTDP_CACHE"] = CACHE = tempfile.mkdtemp(prefix="momentdp-tests-")
    # So do compiled functions: each chapter runs twice, and some tests start processes.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(CACHE, "jax"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"

    def pytest_sessionfinish():
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def load_tool(root):
    """The script book/tools/<name>.py as a module: name -> module."""

    def load(name: str):
        path = root / "book" / "tools" / f"{name}.py"
        specification = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load
