"""The command `momentdp`; `python -m momentdp` is the same.

Exit codes: 0 done, 1 something that ran failed (a chapter's cell, a check), 2 refused input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def _run(arguments: argparse.Namespace) -> int:
    from momentdp import _yaml, chapters

    parameters = _yaml.read_mapping(arguments.file) if arguments.file else {}
    parameters.update({name: _yaml.parse(value) for name, value in arguments.parameters})
    print(chapters.run_chapter(arguments.chapter, parameters, arguments.output))
    return 0


def _add_run(commands) -> None:
    command = commands.add_parser(
        "run",
        help="run a chapter at other settings",
        description="Run a chapter of the book at other settings; the chapters stay as they are. "
        "Names and types are checked against the chapter's `parameters` cell.",
    )
    command.add_argument("chapter", help="such as 04_crossovers, crossovers, or a path")
    command.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="one parameter, the value as in YAML; may be repeated; wins over -f",
    )
    command.add_argument("-f", dest="file", metavar="RUN.yaml", help="parameters as a YAML file")
    command.add_argument(
        "-o", dest="output", default="runs", metavar="OUT", help="an .ipynb file or a folder (runs)"
    )
    command.set_defaults(call=_run)


# Each entry adds one subcommand and sets `call`, the function that runs it and returns its exit code.
COMMANDS = (_add_run,)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="momentdp",
        description="Which correlated-noise mechanism should I use for my optimizer?",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.call(parsed)
    except ValueError as error:
        print(f"momentdp: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"momentdp: {error}", file=sys.stderr)
        return 1
