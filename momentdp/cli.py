"""The command `momentdp`; `python -m momentdp` is the same.

Exit codes: 0 done, 1 something that ran failed (a chapter's cell, a check), 2 refused input.
"""

from __future__ import annotations

import argparse
import importlib
import os
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


def _rank(arguments: argparse.Namespace) -> int:
    import json

    from momentdp.tool import choice, export, html, runfile, words

    if arguments.report and not arguments.report.endswith(".html"):
        raise ValueError(f"report: got {arguments.report}; give a path that ends in .html")
    if arguments.mechanism and not arguments.export:
        raise ValueError(f"mechanism: got {arguments.mechanism}; say where to with --export DIR")
    found = choice.choose(runfile.read_run(arguments.file))
    if arguments.export:
        folder = export.save(found, arguments.export, arguments.mechanism)
        print(f"exported to {folder}", file=sys.stderr)
    if arguments.json:
        told = {"ranking": found.ranking, "robustness": found.robustness}
        told |= {"trajectory": found.trajectory, "expected": words.best_pairs(found)}
        shown = {k: json.loads(v.reset_index().to_json(orient="records")) for k, v in told.items()}
        print(json.dumps(shown | {"warnings": found.warnings, "notes": found.run.notes}, indent=1))
    else:
        columns = ["rank", "damage", "relative_to_best", "relative_to_floor", "sensitivity"]
        shown = found.ranking[[*columns, "noise_multiplier", "noise_memory", "worst_relative"]]
        print(shown.map(lambda v: f"{v:.4g}" if isinstance(v, float) else v).to_string())
        print("\n" + words.recommendation(found))
    if arguments.report:
        print(
            f"report: {html.write_report(arguments.file, arguments.report, found)}", file=sys.stderr
        )
    return 0


def _add_rank(commands) -> None:
    command = commands.add_parser(
        "rank",
        help="which mechanism for a training run, described by a YAML file",
        description="Chapter 10 of the book says what a run file holds and how to read the answer.",
    )
    command.add_argument("file", metavar="RUN.yaml")
    command.add_argument("--report", metavar="OUT.html", help="write the report as one page")
    command.add_argument("--json", action="store_true", help="print the tables as JSON")
    command.add_argument("--export", metavar="DIR", help="write the noise for the training code")
    about = "with --export: this one instead of the first"
    command.add_argument("--mechanism", metavar="NAME", help=about)
    command.set_defaults(call=_rank)


def _ledger(arguments: argparse.Namespace) -> int:
    from momentdp import ledger

    if arguments.update:
        ledger.update()
    rows = ledger.load()
    if arguments.verdict and arguments.verdict not in ledger.VERDICTS:
        known = ", ".join(ledger.VERDICTS)
        raise ValueError(f"verdict: got {arguments.verdict!r}; choose one of {known}")
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


# What `verify` checks: records against their manifest, and what modules know of their own files:
# a name and the module whose `verify()` raises ValueError on a mismatch.
RECORDS = ("boundary", "boundary_cnn", "cnn", "crossovers", "logistic", "solvers")
VERIFIED = {
    "strategies": "momentdp.mechanisms.store",
    "ledger": "momentdp.ledger",
    "registry": "momentdp.studies.registry",
    "crossovers": "momentdp.studies.validation",
    "boundary": "momentdp.studies.boundary_study",
}


def _verify(arguments: argparse.Namespace) -> int:
    from momentdp.studies import records

    def check(module: str):
        importlib.import_module(module).verify()

    checks = [
        (f"results/{name}", records.read_manifest, records.COMMITTED / name) for name in RECORDS
    ]
    checks += [(name, check, module) for name, module in VERIFIED.items()]
    failed = 0
    for name, function, argument in checks:
        try:
            function(argument)
            print(f"{name}: as recorded")
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
    return failed


def _add_verify(commands) -> None:
    command = commands.add_parser("verify", help="check committed records against their hashes")
    command.set_defaults(call=_verify)


def _add_study(commands, is_wanted: bool) -> None:
    about = "run a long study, resumable; its records go to a folder"
    study = commands.add_parser("study", help=about)
    if not is_wanted:  # the studies take seconds to import
        return
    from momentdp.studies import boundary_study, cnn_command, logistic_study, validation

    studies = study.add_subparsers(required=True, metavar="NAME")
    cnn_command.add_study_parser(studies)
    validation.add_study_parser(studies)
    logistic_study.add_study_parser(studies)
    boundary_study.add_study_parser(studies)


# Each entry adds one subcommand and sets `call`, the function that runs it and returns its exit code.
COMMANDS = (_add_rank, _add_run, _add_ledger, _add_verify)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    about = "Which correlated-noise mechanism should I use for my optimizer?"
    parser = argparse.ArgumentParser(prog="momentdp", description=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    _add_study(commands, "study" in arguments[:1])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parsed = _parser(arguments).parse_args(arguments)
    try:
        code = parsed.call(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        print(f"momentdp: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"momentdp: {error}", file=sys.stderr)
        return 1
