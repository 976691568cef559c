"""The command `momentdp`; `python -m momentdp` is the same.

Exit codes: 0 done, 1 something that ran failed (a chapter's cell, a check), 2 refused input.
"""

from __future__ import annotations

import argparse
import importlib
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
        description="Names and types are checked against the chapter's `parameters` cell.",
    )
    command.add_argument("chapter", help="such as 04_crossovers, crossovers, or a path")
    one = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    about = "one parameter, its value as in YAML; may be repeated; wins over -f"
    command.add_argument("-p", dest="parameters", help=about, **one)
    command.add_argument("-f", dest="file", metavar="RUN.yaml", help="parameters as a YAML file")
    command.add_argument(
        "-o", dest="output", default="runs", metavar="OUT", help="an .ipynb file or a folder (runs)"
    )
    command.set_defaults(call=_run)


def _ledger(arguments: argparse.Namespace) -> int:
    from momentdp import ledger

    if arguments.update:
        ledger.update()
    rows = ledger.load()
    if arguments.verdict:
        rows = rows[rows["verdict"] == arguments.verdict]
    columns = ["id", "kind", "reported", "ours", "tolerance", "verdict"]
    shown = rows[columns].map(lambda v: f"{v:.6g}" if isinstance(v, float) else v)
    print(shown.replace("nan", "").to_string(index=False))
    print("\n" + rows["verdict"].value_counts(sort=False).to_string(header=False))
    return 0


def _add_ledger(commands) -> None:
    command = commands.add_parser("ledger", help="each number that the paper reports, and ours")
    command.add_argument(
        "--verdict", metavar="VERDICT", help="only the rows with this verdict, such as 'not yet'"
    )
    command.add_argument("--update", action="store_true", help="recompute ours from the studies")
    command.set_defaults(call=_ledger)


# What `verify` checks: a name and the module whose `verify()` raises ValueError on a mismatch.
VERIFIED = {
    "strategies": "momentdp.mechanisms.store",
    "ledger": "momentdp.ledger",
    "registry": "momentdp.studies.registry",
    "crossovers": "momentdp.studies.validation",
}


def _verify(arguments: argparse.Namespace) -> int:
    failed = 0
    for name, module in VERIFIED.items():
        try:
            importlib.import_module(module).verify()
            print(f"{name}: as recorded")
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


def _add_verify(commands) -> None:
    command = commands.add_parser("verify", help="check committed records against their hashes")
    command.set_defaults(call=_verify)


def _add_study(commands) -> None:
    from momentdp.studies import cnn_command, logistic_study, validation

    about = "run a long study, resumable; its records go to a folder"
    studies = commands.add_parser("study", help=about).add_subparsers(required=True, metavar="NAME")
    cnn_command.add_study_parser(studies)
    validation.add_study_parser(studies)
    logistic_study.add_study_parser(studies)


# Each entry adds one subcommand and sets `call`, the function that runs it and returns its exit code.
COMMANDS = (_add_run, _add_ledger, _add_verify, _add_study)


def _parser() -> argparse.ArgumentParser:
    about = "Which correlated-noise mechanism should I use for my optimizer?"
    parser = argparse.ArgumentParser(prog="momentdp", description=about)
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
