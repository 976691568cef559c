"""Shared by all tests.

`momentdp` is never imported at the top of a conftest: the jaxtyping flag in pyproject.toml has to
see its first import to check the shapes in its signatures.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT
