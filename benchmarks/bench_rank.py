"""From a run file to the report: CPU and wall seconds and memory, cold and with a warm cache.

1,000 steps with 50 modes and the pool `paper`, and 100,000 steps with the structured mechanisms.
Limits (CPU seconds, since other processes share the machine): 180 cold, 30 warm; 120 and 4 GiB.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = """
steps: {steps}
epsilon: 4.0
delta: 1e-5
clipping: {{normalize_by: 256}}
optimizer: {{momentum: 0.9}}
learning_rate: {{schedule: cosine, peak_value: 0.1}}
curvature: {{spectrum: log_spaced, modes: 50, condition_number: 100.0}}
start: {{error: 1.0}}
"""
CASES = (("cold", 1000, 180), ("warm", 1000, 30), ("structured", 100_000, 120))
MEMORY_GIB = 4.0


def report(steps: int, folder: Path) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, GiB at most) of `momentdp rank RUN.yaml --report OUT.html`."""
    (folder / "RUN.yaml").write_text(RUN.format(steps=steps))
    line = [sys.executable, "-m", "momentdp", "rank", "RUN.yaml", "--report", "out.html"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"MOMENTDP_CACHE": str(folder / "cache")}
    subprocess.run(line, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start, after.ru_maxrss / 2**20


def main() -> int:
    """Print a line a case; 1 if a limit is passed."""
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, steps, limit in CASES:
            cpu, wall, memory = report(steps, Path(folder))
            late += cpu > limit or memory > MEMORY_GIB
            print(f"{name:10s} T = {steps:6d}: {cpu:5.0f} CPU seconds of {limit}, {wall:5.0f} wall, {memory:.1f} GiB")  # fmt: skip
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
