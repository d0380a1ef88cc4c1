"""Data-centre GPUs: figures from their data sheets, and latencies that others measured on them."""

from dataclasses import dataclass

KERNELS_OF_LAYER = 9  # norm, qkv, rope and KV, attention, its output, norm, gate and up, their product, down
# seconds of a kernel inside a CUDA graph on an H100; used for the other GPUs too, for which no measurement was found
LAUNCH = 1.3e-6
LAUNCH_SOURCE = "Hazy Research, Look Ma, No Bubbles (2025-05-27): 1.3 us a kernel within a CUDA graph, H100"
# seconds of an all-reduce of 32 KB inside a node, by number of GPUs
NVLINK4 = {2: 4.5e-6, 4: 4.8e-6, 8: 7.8e-6}
H100_REDUCE = "sglang pull request 2904, custom all-reduce of 32 KB on H100: 4.5, 4.8, 7.8 us for 2, 4, 8 GPUs"
AS_H100 = "not found for this GPU: taken as on the H100 (sglang pull request 2904)"


@dataclass(frozen=True)
class Gpu:
    """A GPU and where each of its figures comes from."""

    name: str
    bandwidth: float  # bytes/s of its memory
    matrix: float  # dense bf16 FLOP/s
    memory: float  # bytes
    link: float  # bytes/s of NVLink, one way
    launch: float  # seconds that a kernel in a CUDA graph costs
    all_reduce: dict[int, float]  # seconds of a small all-reduce, by number of GPUs
    source: dict[str, str]  # source of each figure, by field

    def reduce_seconds(self, gpus: int, message: float) -> float:
        """Seconds of an all-reduce of `message` bytes: the latency, and the transfer of the bytes beyond 32 KB."""
        if gpus == 1:
            return 0.0
        known = [n for n in self.all_reduce if n <= gpus] or [min(self.all_reduce)]
        return self.all_reduce[max(known)] + 2 * (gpus - 1) / gpus * max(message - 32768, 0) / self.link


def _sources(sheet: str, reduce: str) -> dict[str, str]:
    sheet = {name: sheet for name in ("bandwidth", "matrix", "memory", "link")}
    return sheet | {"launch": LAUNCH_SOURCE, "all_reduce": reduce}


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 2.039e12, 312e12, 80e9, 300e9, LAUNCH, NVLINK4,
            _sources("NVIDIA A100 80 GB SXM data sheet", AS_H100)),
        Gpu("H100", 3.35e12, 989e12, 80e9, 450e9, LAUNCH, NVLINK4,
            _sources("NVIDIA H100 SXM data sheet (1,979 TFLOP/s with sparsity)", H100_REDUCE)),
        Gpu("H200", 4.8e12, 989e12, 141e9, 450e9, LAUNCH, NVLINK4,
            _sources("NVIDIA H200 SXM data sheet (1,979 TFLOP/s with sparsity)", AS_H100 + "; the same NVLink")),
        Gpu("B200", 8.0e12, 2250e12, 180e9, 900e9, LAUNCH, {2: 4.5e-6, 4: 4.8e-6, 8: 8.7e-6},
            _sources("NVIDIA HGX B200 data sheet (4,500 TFLOP/s with sparsity)",
                     "sglang pull request 7621, with the norm, on 8 B200: 8.7 us; fewer GPUs as on the H100")),
    )
}  # fmt: skip


def gpu(name: str) -> Gpu:
    """The GPU of this name. Raises ValueError if the table has none."""
    found = GPUS.get(name.upper())
    if found is None:
        raise ValueError(f"--gpu: got {name!r}, wanted one of {', '.join(GPUS)}")
    return found
