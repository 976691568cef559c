"""`momentdp study cnn`: the whole study from one command."""

import shutil
from pathlib import Path

import numpy as np

from momentdp.mechanisms.catalogue import catalogue
from momentdp.privacy import noise_multiplier
from momentdp.studies.cnn_curvature import damage_by_curvature, run_curvatures
from momentdp.studies.cnn_starts import run_starts, starts_table
from momentdp.studies.cnn_study import StudySettings, run_study
from momentdp.studies.cnn_tables import CONDITIONS, NO_NOISE, POOL, best_and_worst, paired_tests
from momentdp.studies.images import digits_images, fetch_cifar10, load_cifar10
from momentdp.studies.records import write_manifest

DIGITS = {"calibration": 100, "validation": 200, "test": 400}  # there are 1,797 in all


def add_study_parser(commands) -> None:
    """Add the subcommand `cnn` (of `momentdp study`) to an argparse subparsers object."""
    command = commands.add_parser(
        "cnn",
        help="Table 4: the CNN on CIFAR-10",
        description="Train the CNN of Appendix G once for each condition, mechanism and seed. "
        "Interrupted, it resumes: call it again with the same settings and folder.",
    )
    command.add_argument(
        "--data",
        help="copy of CIFAR-10, or the word `digits`; left out, the official archive is fetched "
        "into OUT/data",
    )
    command.add_argument("--out", required=True, help="folder of the records")
    command.add_argument("--seeds", type=int, default=5, help="paired seeds 0, 1, ... (5)")
    command.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    command.add_argument(
        "--mechanisms",
        nargs="+",
        default=[*POOL, NO_NOISE],
        metavar="NAME",
        help="names of the catalogue, or no_noise (the paper's five, and no_noise)",
    )
    command.add_argument("--epsilon", type=float, default=4.0, help="privacy budget (4)")
    command.add_argument("--delta", type=float, default=1e-5, help="its delta (1e-5)")
    for name in ("steps", "batch_size", "learning_rate", "data_seed"):
        default = getattr(StudySettings(), name)
        option = f"--{name.replace('_', '-')}"
        command.add_argument(option, type=type(default), default=default, help=f"({default})")
    command.add_argument(
        "--rate-scale",
        type=float,
        help="take the rate RATE_SCALE / lambda_max of each seed instead",
    )
    command.add_argument(
        "--starts",
        action="store_true",
        help="instead: the largest curvature at starts with other weights and input scalings",
    )
    command.add_argument(
        "--curvatures",
        action="store_true",
        help="instead: curvature of both signs along the runs without noise of the first of the "
        "CONDITIONS, from the calibrations in OUT",
    )
    command.add_argument(
        "--mirrored",
        action="store_true",
        help="instead: the same runs with the noise's sign turned, into OUT/mirrored, from the "
        "calibrations in OUT",
    )
    command.add_argument("--workers", type=int, default=1, help="local processes (1)")
    command.add_argument("--scheduler", metavar="ADDRESS", help="of a running dask scheduler")
    command.set_defaults(call=_call)


def _call(arguments) -> int:
    mechanisms = {}
    for name in arguments.mechanisms:
        if name == NO_NOISE:
            mechanisms[name] = np.zeros((arguments.steps, arguments.steps))
        else:
            member = catalogue(arguments.steps, pool=[name])[name]
            mechanisms[name] = np.asarray(member.noising_matrix)
    steps = arguments.steps
    settings = StudySettings(
        steps=steps,
        batch_size=arguments.batch_size,
        noise_multiplier=noise_multiplier(arguments.epsilon, arguments.delta),
        rate_scale=arguments.rate_scale,
        learning_rate=arguments.learning_rate,
        checkpoints=tuple(sorted({max(1, steps * k // 5) for k in range(1, 6)})),
        data_seed=arguments.data_seed,
        **DIGITS if arguments.data == "digits" else {},
    )
    if arguments.data == "digits":
        images = digits_images()
    else:
        images = load_cifar10(arguments.data or fetch_cifar10(Path(arguments.out, "data")))
    if arguments.starts:
        run_starts(settings, images, arguments.out)
        write_manifest(Path(arguments.out), Path(arguments.out).rglob("*.*.json"))
        print(starts_table(arguments.out).to_string())
        return 0
    out, seeds = Path(arguments.out), tuple(range(arguments.seeds))
    how = {"workers": arguments.workers, "scheduler": arguments.scheduler}
    if arguments.curvatures:
        condition = arguments.conditions[0]
        run_curvatures(settings, images, out, condition=condition, seeds=seeds, **how)
        write_manifest(out, out.rglob("*.*.json"))
        print(damage_by_curvature(folder=out).to_string())
        return 0
    if arguments.mirrored:
        mechanisms = {name: -matrix for name, matrix in mechanisms.items() if name != NO_NOISE}
        out, starts = out / "mirrored", out.glob("calibration.*.json")
        out.mkdir(exist_ok=True)
        for path in starts:
            shutil.copy2(path, out)
    records = run_study(
        settings,
        images,
        mechanisms,
        out,
        seeds=seeds,
        conditions=tuple(arguments.conditions),
        **how,
    )
    if arguments.mirrored:  # OUT's manifest names them too
        write_manifest(out.parent, out.parent.rglob("*.*.json"))
    for outcome in ("test_accuracy", "test_loss"):
        print(f"\n{outcome}\n{best_and_worst(records, outcome).round(4).to_string()}")
        print(f"\npaired tests\n{paired_tests(records, outcome).round(4).to_string(index=False)}")
    return 0
