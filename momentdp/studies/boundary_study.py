"""The 2 x 2 beyond the neural boundary: designed at momentum 0 or 0.9, trained at 0 or 0.9.

Everything in `boundary_designs` is frozen with a hash before the first run.
"""

from pathlib import Path

import numpy as np

from momentdp._checks import refuse
from momentdp.studies import boundary, boundary_designs, records
from momentdp.studies.boundary_designs import EPSILONS, PLANS, frozen_design, of_budget
from momentdp.studies.boundary_paths import complete_paths
from momentdp.studies.cnn_tables import NO_NOISE
from momentdp.studies.images import ImageSet, load_cifar10

RESULTS = records.COMMITTED / "boundary"
SEEDS = tuple(range(20))
OUTCOMES = ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")


def folder_of(network: str) -> Path:
    """Where the committed records of a network lie."""
    return RESULTS if network == "mlp" else RESULTS.with_name(f"boundary_{network}")


def verify() -> None:
    """`ValueError` unless declarations and matrices are those that were frozen."""
    for network in PLANS:
        frozen_design(folder_of(network))


def run_study(images: ImageSet, folder: Path = RESULTS, *, late: bool = False) -> None:
    """Run what is missing: a record for each seed, budget and momentum, all mechanisms in each.

    `late` runs instead a control that was added when the outcomes were known, in records of its own.
    """
    frozen, matrices = frozen_design(folder)
    if frozen["data_sha256"] != images.sha256:
        raise refuse("images", images.sha256, f"use the data of the designs: {frozen['data']}")
    network, kind = PLANS[frozen.get("network", "mlp")].network, "late" if late else "run"
    matrices = late_control() if late else matrices
    digest, jobs = boundary_designs.digest(folder), {}
    for seed in SEEDS:  # first, so that a study that is stopped is balanced
        for condition, declared in frozen["conditions"].items():
            epsilon, momentum = map(float, condition.split())
            identity = {"condition": condition, "seed": seed, "frozen": digest}
            arguments = (epsilon, momentum, declared["effective_rate"], seed)
            jobs[folder / f"{kind}-{epsilon:g}-{momentum:g}-{seed}.json"] = identity, arguments
    records.complete(one_run, (network, boundary.prepare(images), matrices), jobs)


def late_control() -> dict[str, np.ndarray]:
    """(steps, steps) C^-1 of `flat_9`: made at momentum 0.9 as `made_9` is, without curvature.

    No rate and no budget enter it: one matrix for every "epsilon name".
    """
    made = np.asarray(boundary_designs.made_flat(0.9).noising_matrix)
    return {f"{epsilon:g} flat_9": made for epsilon in EPSILONS}


def one_run(shared, epsilon: float, momentum: float, rate: float, seed: int) -> dict:
    """Outcomes of every mechanism of this budget, and of training without noise."""
    network, parts, matrices = shared
    noising = of_budget(matrices, epsilon)
    steps = len(next(iter(noising.values())))
    noising[NO_NOISE] = np.zeros((steps, steps))
    stacked = np.stack(list(noising.values()))
    ends = boundary.train_all(network, parts, stacked, epsilon, momentum, rate, seed)
    found = {}
    for name, end in zip(noising, ends, strict=True):
        measured = [
            float(value)
            for part in ("validation", "test")
            for value in boundary.outcomes(network, end, parts[part].inputs, parts[part].labels)
        ]
        if not np.isfinite(measured).all():
            raise refuse("learning_rate", f"a loss that is not finite ({name})", "lower it")
        found[name] = dict(zip(OUTCOMES, measured, strict=True))
    return {"outcomes": found}


def add_study_parser(commands) -> None:
    """Add the subcommand `boundary` (of `momentdp study`) to an argparse subparsers object."""
    command = commands.add_parser(
        "boundary",
        help="networks that mechanisms made for two optimizers train",
        description="Freeze rates, designs and predictions, then run what is missing. Interrupted, "
        "it resumes: call it again with the same folder.",
    )
    command.add_argument(
        "--data", required=True, help="copy of CIFAR-10: official archive or images"
    )
    command.add_argument("--out", required=True, help="folder of the records")
    command.add_argument("--network", choices=sorted(PLANS), default="mlp", help="(mlp)")
    command.add_argument("--freeze-only", action="store_true", help="declare only, run nothing")
    command.add_argument(
        "--afterwards",
        action="store_true",
        help="instead: curvature and damage along runs, and a control that was added late",
    )
    command.set_defaults(call=_call)


def _call(arguments) -> int:
    images, folder = load_cifar10(arguments.data), Path(arguments.out)
    if not (folder / "frozen.sha256").exists():
        print("frozen:", boundary_designs.freeze(arguments.network, images, folder))
    declared = frozen_design(folder)[0].get("network", "mlp")
    if declared != arguments.network:
        raise refuse("network", arguments.network, f"the folder's designs are for {declared}")
    if arguments.afterwards:
        complete_paths(images, folder)
        run_study(images, folder, late=True)
    elif not arguments.freeze_only:
        run_study(images, folder)
    files = {path for path in folder.iterdir() if path.suffix != ".tmp"}
    records.write_manifest(folder, files - {folder / records.MANIFEST})
    return 0
