"""Everything that a machine with a GPU can show, in one folder: `python -m bench.gpu_check --out DIR`.

Builds the extension for the GPU of the machine, runs the tests that need it and then all others, the benchmarks, and
decoding with random weights of Llama-8B shape. Each part is a process of its own with a log in DIR, so that a failure
does not affect the others. The check ends within --minutes: a part that takes long leaves the later ones their minimum
time, and parts without time are named. Nothing is downloaded.
DIR/report.json: `rows`: part, status (passed, failed, out of time, no time left), seconds, command, files.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass
class Part:
    """A part of the check."""

    name: str
    command: list[str]
    limit: float  # seconds at most
    needs: tuple[str, ...] = ()  # parts that must have passed
    environment: dict[str, str] = field(default_factory=dict)  # variables beside those of this process
    least: float = 0  # seconds that the earlier parts leave it


def parts(out: Path, capability: str) -> list[Part]:
    """All parts, the most important first, so that a check that is cut short has the tests and the first figures."""
    py = sys.executable

    def json_of(name: str) -> str:
        return str(out / f"{name}.json")

    pytest = [py, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-m"]
    synthetic = [py, "-m", "bench.synthetic", "--device", "cuda"]
    jobs = str(len(os.sched_getaffinity(0)))
    build = {"TORCH_CUDA_ARCH_LIST": capability, "MAX_JOBS": jobs}
    kernels = [py, "-m", "bench.kernels", "--device", "cuda", "--seconds", "0.1", "--gpu-limit", "70"]
    on_gpu = [*pytest, "gpu", f"--junitxml={out / 'tests_gpu.xml'}", "tests"]
    others = [*pytest, "not gpu and not slow", f"--junitxml={out / 'tests.xml'}", "tests"]
    built = ("build",)
    return [
        Part("build", [py, "setup.py", "-q", "build_ext", "--inplace"], 180, (), build),
        Part("tests on the GPU", on_gpu, 150, built, least=60),
        Part("decoding", [*synthetic, "--json", json_of("decoding")], 60, built, least=30),
        Part("decoding, graphs", [*synthetic, "--graphs", "--json", json_of("decoding_graphs")], 60, built, least=30),
        Part("kernels", [*kernels, "--json", json_of("kernels")], 110, built, least=90),
        Part("other tests", others, 240, built),
    ]


def run(part: Part, out: Path, limit: float) -> dict:
    """Runs a part and returns its row. A log has its output, and none of its processes survives it."""
    begin = time.monotonic()
    log = out / f"{part.name.replace(', ', '_').replace(' ', '_')}.log"
    before = {p.name for p in out.iterdir()}
    with log.open("w") as f:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=os.environ | part.environment, stdout=f, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = "failed" if process.wait(limit) else "passed"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    files = sorted({p.name for p in out.iterdir()} - before)
    seconds = round(time.monotonic() - begin, 1)
    command = " ".join(part.command)
    return {"part": part.name, "status": status, "seconds": seconds, "command": command, "files": files}


def check(out: Path, wanted: list[Part], seconds: float) -> list[dict]:
    """Runs all parts and returns their rows, which are written to out/report.json one by one."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    rows = []
    passed = set()
    for i, part in enumerate(wanted):
        left = end - time.monotonic() - sum(later.least for later in wanted[i + 1 :])
        if missing := [need for need in part.needs if need not in passed]:
            row = {"part": part.name, "status": f"not run: {missing[0]} did not pass", "seconds": 0.0}
        elif left < 5:
            row = {"part": part.name, "status": "no time left", "seconds": 0.0}
        else:
            row = run(part, out, min(part.limit, left))
        passed |= {part.name} if row["status"] == "passed" else set()
        rows.append(row)
        (out / "report.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        print(f"{row['part']}: {row['status']}, {row['seconds']:.0f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu"), help="folder of results (%(default)s)")
    parser.add_argument("--minutes", type=float, default=7.5, help="time for all parts (%(default)s)")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("gpu-check: found no GPU; it needs a machine with an NVIDIA GPU, its driver and a CUDA build of torch")
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    rows = check(args.out.resolve(), parts(args.out.resolve(), capability), 60 * args.minutes)
    print(f"results are in {args.out}")
    if any(row["status"] != "passed" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
