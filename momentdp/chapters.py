"""Run a chapter of the book at other settings, on papermill.

Papermill only warns about a misspelt parameter and then shows the numbers of the defaults, and it
takes a string where a number belongs. Both are refused here before a kernel starts, and the
committed chapters are never written to.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

# Chapters are not part of the installed package: they lie beside it in a checkout.
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


# The cell that computes and shows each number of the ledger, by the beginning of the number's id;
# the longest beginning counts. A cell is named by its id, which running it again does not change.
CELLS = {
    "identity.": "02_noisecurve_identity#cell-10",
    "identity.worst": "02_noisecurve_identity#cell-12",
    "privacy.": "03_mechanisms#mechanisms-22",
    "crossovers.": "04_crossovers#f16d64d4",  # the registry; below, simulation and slices
    "crossovers.confirmed": "04_crossovers#c932d6a8",
    "crossovers.half_width": "04_crossovers#c932d6a8",
    "crossovers.slices": "04_crossovers#584e7bd5",
    "crossovers.lr_aware": "04_crossovers#7ec02b1d",
    "grid.": "04_crossovers#ff80e320",
    "winners.": "04_crossovers#effd211c",
    "heldout.": "04_crossovers#89aff4c8",
    "perturbation.": "04_crossovers#139f2b62",
    "intervention.": "05_intervention#5ba6f772",
    "intervention.axis": "05_intervention#b8223379",
    "logistic.": "06_logistic#cell-12",
    "logistic.hessian_weight": "06_logistic#cell-06",
    "logistic.winners": "06_logistic#cell-26",
    "logistic.kendall": "06_logistic#cell-37a",
    "logistic.curvature": "06_logistic#cell-37a",
    **dict.fromkeys(
        [f"logistic.{name}" for name in ("pairwise", "regret", "top1", "resolved")],
        "06_logistic#cell-42",
    ),
    "logistic.frozen": "06_logistic#cell-46",
    "cnn.": "07_cnn_boundary#reported-against-ours",
    "lr_aware.": "08_prior_work#cell-10",
    "solver.": "08_prior_work#cell-12",
    "mechanisms.": "08_prior_work#cell-41",
    "trajectory.": "08_prior_work#cell-43",
}


class ChapterFailed(RuntimeError):
    """A cell of the chapter raised, or its kernel died."""


def find_chapter(chapter: str | Path) -> Path:
    """The notebook of a chapter, given as `04_crossovers`, `crossovers` or a path to an .ipynb file.

    ValueError: no such chapter, or a package that was installed without the book beside it.
    """
    if Path(chapter).suffix == ".ipynb":
        if not Path(chapter).is_file():
            raise ValueError(f"chapter: got {chapter}, which does not exist; give an existing file")
        return Path(chapter).resolve()
    known = sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in known:
        if str(chapter) in (path.stem, path.stem.partition("_")[2]):
            return path
    mend = f"choose one of {', '.join(path.stem for path in known)}"
    if not known:
        mend = f"no chapters in {NOTEBOOKS}: install a checkout with `pip install -e .`, or give a path"
    raise ValueError(f"chapter: got {chapter!r}; {mend}")


def cell_of(identity: str) -> str:
    """Where the book computes a row of the ledger, as `chapter#cell`.

    ValueError: an id that no cell is named for.
    """
    starts = [start for start in CELLS if identity.startswith(start)]
    if not starts:
        raise ValueError(f"id: got {identity!r}; name its cell in momentdp.chapters.CELLS")
    return CELLS[max(starts, key=len)]


def chapter_parameters(chapter: str | Path) -> dict[str, object]:
    """Name and default of each parameter of a chapter, from its one cell tagged `parameters`.

    ValueError: no such cell or several, or a default that is not a plain literal.
    """
    import nbformat

    path = find_chapter(chapter)
    cells = nbformat.read(path, as_version=4).cells
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"{path.name}: got {len(tagged)} cells tagged `parameters`; have one")
    defaults = {}
    for statement in ast.parse(tagged[0].source).body:
        try:
            (target,) = statement.targets
            defaults[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError) as error:
            line = f"{path.name}: got `{ast.unparse(statement)}` among the parameters"
            raise ValueError(f"{line}; write `name = literal`") from error
    return defaults


def _accepted(name: str, value: object, default: object) -> object:
    """The value in the type of its default: an int may stand for a float, nothing else differs."""
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        # A list, also for a tuple: papermill would write a tuple into the chapter as a string.
        return [_accepted(name, item, default[0]) if default else item for item in value]
    if default is None and (value is None or isinstance(value, (bool, int, float, str))):
        return value
    if type(default) is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is type(default):
        return value
    raise ValueError(
        f"{name}: got {value!r} ({type(value).__name__}); give a value of type "
        f"{type(default).__name__}, such as its default {default!r}"
    )


def run_chapter(
    chapter: str | Path,
    parameters: Mapping[str, object] | None = None,
    output: str | Path = "runs",
) -> Path:
    """Run a chapter with other parameters, in its own folder; the path of the executed notebook.

    `output` is a path ending in .ipynb, or a folder, where the file takes the chapter's name. After
    a failure it holds the run up to the failing cell.

    ValueError: unknown chapter, unknown parameter, a value of another type than the default, an
    output among the committed chapters. ChapterFailed: a cell raised.
    """
    import papermill

    path = find_chapter(chapter)
    defaults = chapter_parameters(path)
    parameters = dict(parameters or {})
    unknown = sorted(set(parameters) - set(defaults))
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)}: not a parameter of {path.stem}; it has {', '.join(defaults)}"
        )
    values = {name: _accepted(name, value, defaults[name]) for name, value in parameters.items()}
    output = Path(output).resolve()
    if output.suffix != ".ipynb":
        output = output / path.name
    if output.is_relative_to(NOTEBOOKS) or output == path:
        raise ValueError(f"output: got {output}, among the committed chapters; write elsewhere")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            str(path),
            str(output),
            parameters=values,
            kernel_name="python3",  # whatever environment the notebook was saved from
            cwd=str(path.parent),
            progress_bar=False,
            extra_arguments=["--log-level=ERROR"],  # ipykernel's notice about its TCP ports
        )
    except papermill.PapermillExecutionError as error:
        raise ChapterFailed(
            f"{path.stem}: cell [{error.exec_count}] raised {error.ename}: {error.evalue}\n"
            f"{error.source}\nThe run up to there: {output}"
        ) from error
    return output
