"""Everything that a machine with a GPU can show, in one folder: `python -m bench.gpu_check --out DIR`.

First the product: `ssd.run` in every mode with the default pair, bench.exact and bench.hit_rate; then the operators
against other packages' (bench.operators), random weights in the shape of Llama-8B through the same engine
(bench.synthetic), and the tests. Each part is a process of its own with a log in DIR, so that a failure does not affect
the others. A line says of each whether it is ok and what it measured. A part that has to compile kernels is timed
apart: `ssd.run` and bench.hit_rate run twice. The check ends within --minutes: a part that takes long leaves the later
ones their minimum time, and parts without time have failed. The exit code is 1 if a part failed.
Nothing is downloaded but the default target, where it was never used before and --target names no other.
--device cpu runs all parts that need no GPU on small sizes, which shows that the check works.
DIR/report.json: `rows`: part, verdict (ok, FAILED), measured, seconds, command, files.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ssd.cli.command import guarded

from . import verdicts
from .workloads import check_names

ROOT = Path(__file__).parent.parent
PROMPT = "Why is the sky blue?"
MODES = ("ar", "sd", "ssd", "auto")


@dataclass
class Part:
    """A part of the check."""

    name: str
    command: list[str]
    limit: float  # seconds at most
    needs: tuple[str, ...] = ()  # parts that must be ok
    environment: dict[str, str] = field(default_factory=dict)  # variables beside those of this process
    least: float = 0  # seconds that the earlier parts leave it
    verdict: Callable[[Path], str] = lambda out: "done"  # what it measured; raises Wrong


@dataclass(frozen=True)
class Sizes:
    """Arguments of the parts, by how much a device can do."""

    tokens: int
    exact: str
    hit_rate: str
    operators: str
    synthetic: str


ON_GPU = Sizes(
    tokens=128,
    exact="--shapes 3x3,auto --dtypes bf16 --batches 1,8 --temperatures 0,1 --limit 1 --max-tokens 32",
    hit_rate="--limit 1 --max-tokens 64 --fan-out 4 --temperatures 0,1",
    operators="--limit 60",
    synthetic="--modes ar,sd,ssd,auto",
)
ON_CPU = Sizes(
    tokens=16,
    exact="--shapes 3 --dtypes bf16 --batches 2 --temperatures 1 --limit 1 --max-tokens 12 --threads 1",
    hit_rate="--limit 1 --max-tokens 24 --fan-out 4 --temperatures 0 -k 2",
    operators="--seconds 0.01",
    synthetic="--modes ar,sd,ssd,auto --target tiny --draft tiny-draft --prefix 100 --tokens 40",
)


def product(out: Path, device: str, target: str | None, draft: str | None, sizes: Sizes) -> list[Part]:
    """The parts that run what a person runs."""
    py, needs = sys.executable, ("build",) if device != "cpu" else ()
    which = ["--target", target] if target else []
    drafts = ["--draft", draft] if draft else []

    def run(mode, name, on=device):
        more = [*which, *(drafts if mode != "ar" else [])]
        command = [py, "-m", "ssd.run", PROMPT, "--mode", mode, "--device", on, "--max-tokens", str(sizes.tokens)]
        return [*command, *more, "--json", str(out / f"{name}.json")]

    def bench(name, arguments, *more):
        own = [*arguments.split(), "--device", device, *which, *more, "--json", str(out / f"{name}.json")]
        return [py, "-m", f"bench.{name}", *own]

    made = [Part("reference on the CPU", run("ar", "reference", "cpu"), 60, needs, least=10,
                 verdict=partial(verdicts.answered, name="reference"))]  # fmt: skip
    for mode in MODES:
        name, first = f"ssd.run {mode}", partial(verdicts.answered, name="first")
        judge = verdicts.plain if mode == "ar" else partial(verdicts.speculated, mode=mode)
        made.append(Part(f"first {name}", run(mode, "first"), 90, needs, least=20, verdict=first))
        made.append(Part(name, run(mode, mode), 60, needs, least=10, verdict=judge))
    exact = bench("exact", f"--modes {','.join(MODES)} {sizes.exact}", "--drafts", draft or "default")
    made.append(Part("bench.exact", exact, 120, needs, least=40, verdict=verdicts.exact))
    for name in ("first bench.hit_rate", "bench.hit_rate"):
        command = bench("hit_rate", sizes.hit_rate, *drafts)
        made.append(Part(name, command, 60, needs, least=15, verdict=verdicts.hit_rate))
    return made


def parts(
    out: Path, device: str, target: str | None, draft: str | None, capability: str = "", cache: Path | None = None
) -> list[Part]:
    """All parts, the most telling first, so that a check that is cut short has them.

    capability: of the GPU, such as "9.0"; cache: an empty folder for compiled kernels, and for what is learnt of models
    that are made up.
    """
    py, small = sys.executable, device == "cpu"
    sizes, needs = (ON_CPU, ()) if small else (ON_GPU, ("build",))

    def bench(name, arguments):
        return [py, "-m", f"bench.{name}", "--device", device, *arguments.split(), "--json", str(out / f"{name}.json")]

    made = product(out, device, target, draft, sizes)
    made += [
        Part("bench.operators", bench("operators", sizes.operators), 90, needs, least=40, verdict=verdicts.operators),
        Part("bench.synthetic", bench("synthetic", sizes.synthetic), 120, needs, least=40, verdict=verdicts.synthetic),
    ]
    if not small:
        build = {"TORCH_CUDA_ARCH_LIST": capability, "MAX_JOBS": str(len(os.sched_getaffinity(0)))}
        made.insert(0, Part("build", [py, "setup.py", "-q", "build_ext", "--inplace"], 180, (), build))
        pytest = [py, "-m", "pytest", "-p", "no:cacheprovider", "-rs"]
        for name, file, chosen in (
            ("tests on the GPU", "tests_gpu", "gpu"), ("other tests", "tests", "not gpu and not slow")
        ):  # fmt: skip
            command = [*pytest, "--junitxml", str(out / f"{file}.xml"), "-m", chosen, "tests"]
            made.append(Part(name, command, 240, needs, least=30, verdict=partial(verdicts.tests, name=file)))
    for part in made:
        part.environment |= {"TRITON_CACHE_DIR": str(cache / "triton")} if cache else {}
        part.environment |= {"XDG_CACHE_HOME": str(cache)} if cache and part.name == "bench.synthetic" else {}
    return made


def run(part: Part, out: Path, limit: float) -> dict:
    """Runs a part and returns its row. A log has its output, and none of its processes survives it."""
    begin = time.monotonic()
    log = out / f"{part.name.replace(' ', '_')}.log"
    for path in map(Path, part.command):
        if path.parent == out:  # what an earlier check wrote
            path.unlink(missing_ok=True)
    before = {p.name for p in out.iterdir()}
    with log.open("w") as f:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=os.environ | part.environment, stdout=f, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = round(time.monotonic() - begin, 1)
    good, measured = judged(part, out, code, log)
    files = sorted({p.name for p in out.iterdir()} - before)
    row = {"part": part.name, "verdict": "ok" if good else "FAILED", "measured": measured, "seconds": seconds}
    return row | {"command": " ".join(part.command), "files": files}


def judged(part: Part, out: Path, code: int | None, log: Path) -> tuple[bool, str]:
    """(whether a part that ended with this code, or None out of time, is ok, what it measured or what is wrong)."""
    if code is None:
        return False, "out of time"
    try:
        told = part.verdict(out)
    except verdicts.Wrong as e:
        told, code = str(e), code or 1
    except (KeyError, TypeError, ValueError) as e:
        told, code = f"its results cannot be read: {e!r}", code or 1
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    return code == 0, told if code == 0 else ": ".join([told, *last])[:500]


def check(out: Path, wanted: list[Part], seconds: float) -> list[dict]:
    """Runs all parts, prints a line for each, and returns their rows, which out/report.json has one by one."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    rows = []
    good = set()
    for i, part in enumerate(wanted):
        left = end - time.monotonic() - sum(later.least for later in wanted[i + 1 :])
        row = {"part": part.name, "verdict": "FAILED", "seconds": 0.0}
        if missing := [need for need in part.needs if need not in good and need in {p.name for p in wanted}]:
            row["measured"] = f"not run, since it needs {missing[0]}"
        elif left < 5:
            row["measured"] = "no time left"
        else:
            row = run(part, out, min(part.limit, left))
        good |= {part.name} if row["verdict"] == "ok" else set()
        rows.append(row)
        (out / "report.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        print(f"{row['verdict']:<6} {row['part']}: {row['measured']} ({row['seconds']:.0f} s)", flush=True)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu"), help="folder of results (%(default)s)")
    parser.add_argument("--minutes", type=float, default=9, help="time for all parts (%(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu, where sizes are small (%(default)s)")
    parser.add_argument("--target", help="folder or id of the target (the default target)")
    parser.add_argument("--draft", help="folder or id of the draft (the target's own)")
    parser.add_argument("--only", help="names of parts, with commas between them; a part runs without those it needs")
    args = parser.parse_args(argv)
    import torch

    capability = ""
    if args.device != "cpu":
        if not torch.cuda.is_available():
            raise ValueError("gpu-check: found no GPU; it needs an NVIDIA GPU, its driver and a CUDA build of torch")
        from ssd.runtime.devices.placement import device_of

        capability = "{}.{}".format(*torch.cuda.get_device_capability(device_of(args.device)))
    out = args.out.resolve()
    with tempfile.TemporaryDirectory() as cache:
        wanted = parts(out, args.device, args.target, args.draft, capability, Path(cache))
        if args.only:
            names = args.only.split(",")
            check_names(parser, "--only", names, [part.name for part in wanted])
            wanted = [part for part in wanted if part.name in names]
        rows = check(out, wanted, 60 * args.minutes)
    failed = sum(row["verdict"] != "ok" for row in rows)
    print(f"{failed or 'none'} of {len(rows)} parts failed; results are in {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
