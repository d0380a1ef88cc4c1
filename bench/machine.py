"""The machine that a benchmark runs on, and its cores."""

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "torch", "triton", "flash-attn", "flashinfer-python", "transformers", "llama-cpp-python", "ctranslate2",
    "openvino-genai",
)  # fmt: skip
CPU0 = Path("/sys/devices/system/cpu/cpu0")
CORES = sorted(os.sched_getaffinity(0))  # the process's cores, before a lane pins its thread to some of them


def cores_of(n: int) -> list[int]:
    """The first n cores that this process may use. Raises ValueError when there are fewer."""
    if not 1 <= n <= len(CORES):
        raise ValueError(f"cores: got {n}, wanted 1 to {len(CORES)}, the cores that this process may use")
    return CORES[:n]


def default_cores() -> str:
    """The numbers of cores that benchmarks use by default: one, and all that this process may use."""
    return ",".join(dict.fromkeys(("1", str(len(CORES)))))


def thread_environment(cores: list[int]) -> dict[str, str]:
    """Environment variables that bind a new process's OpenMP threads to these cores, one each, and end their spinning
    within the rest between turns."""
    places = ",".join(f"{{{c}}}" for c in cores)
    spin = {"KMP_BLOCKTIME": "10"}  # milliseconds; Intel's OpenMP would spin for 200
    return {"OMP_NUM_THREADS": str(len(cores)), "OMP_PLACES": places, "OMP_PROC_BIND": "close"} | spin


def last_level_cache() -> int:
    """Bytes of the largest cache of core 0; 32 MiB if the system does not tell."""
    sizes = [_bytes(p.read_text()) for p in CPU0.glob("cache/index*/size")]
    return max(sizes, default=32 << 20)


def peak_memory() -> int:
    """Peak resident memory of this process in bytes (VmHWM). Raises OSError if the system does not tell."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM: peak memory is known on Linux only")


def describe() -> dict:
    """CPU, cores, caches, memory, instruction set, versions and date, without names of hosts or users."""
    import torch

    from ssd.kernels import library

    library.load()
    fields = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    model = next((value.strip() for key, value in fields if key.strip() == "model name"), platform.processor())
    caches = {}
    for index in sorted(CPU0.glob("cache/index*")):
        kind = (index / "type").read_text().strip()[0].lower().replace("u", "")
        caches[f"L{(index / 'level').read_text().strip()}{kind}"] = _bytes((index / "size").read_text())
    return {
        "cpu": model,
        "cores": len(CORES),
        "caches_bytes": caches,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "isa": torch.ops.ssd.isa(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {p: v for p in PACKAGES if (v := _version(p))},
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _bytes(text: str) -> int:
    text = text.strip()
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]] if text[-1:].isalpha() else int(text)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
