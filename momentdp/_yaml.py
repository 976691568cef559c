"""YAML as people write it: `1e-3` is a number, and a key given twice is an error.

YAML 1.1, which PyYAML follows, reads `1e-3` as a string and lets the last of two equal keys win.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: given twice; keep one of them")
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse(text: str) -> object:
    """The value that a YAML text stands for. ValueError: not YAML, or a key given twice."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except yaml.MarkedYAMLError as error:
        # PyYAML finds a brace that was left open at the end of what it took for its contents.
        opened = error.context_mark or error.problem_mark
        where = f"line {opened.line + 1}: " if opened else ""
        begun = f"{error.context}, " if error.context else ""
        raise ValueError(f"not readable as YAML: {where}{begun}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not readable as YAML: {error}") from error


def read_mapping(path: str | Path) -> dict[str, object]:
    """A YAML file that holds `name: value` lines; an empty file is an empty mapping.

    ValueError: no such file, not YAML, a key given twice, or something other than a mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"file: got {path}, which does not exist; give the path of a YAML file")
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{path}: got a {type(value).__name__}; write `name: value` lines")
    return {str(key): entry for key, entry in value.items()}
