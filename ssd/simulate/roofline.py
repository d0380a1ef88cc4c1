"""Seconds of a pass on GPUs: bytes by bandwidth or operations by matrix rate, whichever takes longer, plus a fixed
cost."""

import math
from dataclasses import dataclass, fields

from .hardware import KERNELS_OF_LAYER, Gpu
from .models import BF16, Shape


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet has. All are fitted except `matrix`, which is assumed, since it matters only at
    large batches and the published speeds are of batch 1."""

    bandwidth: float  # share of the peak bandwidth that a pass reaches
    host: float  # seconds of a target pass beside its kernels
    draft_host: float  # seconds of a draft pass beside its kernels
    matrix: float = 0.65  # share of the peak matrix rate that a pass reaches

    def replaced(self, settings: list[str]) -> "Constants":
        """The constants with those of the settings NAME=VALUE replaced. Raises ValueError for a bad name or value."""
        names = [f.name for f in fields(self)]
        values = {name: getattr(self, name) for name in names}
        for setting in settings:
            name, _, text = setting.partition("=")
            try:
                value = float(text)
            except ValueError:
                value = -1.0
            share = name in ("bandwidth", "matrix")
            if name not in names or not 0 <= value < math.inf or (share and not 0 < value <= 1):
                raise ValueError(
                    f"--set: got {setting!r}, wanted NAME=VALUE, one of {', '.join(names)}; bandwidth and matrix in "
                    "(0, 1], the others in seconds"
                )
            values[name] = value
        return Constants(**values)


@dataclass(frozen=True)
class Roofline:
    """The times of a pair of target and draft."""

    gpu: Gpu
    target: Shape
    draft_model: Shape | None
    constants: Constants
    gpus: int = 4  # GPUs over which the target's matrices are split; the draft has one GPU
    context: float = 400.0  # mean tokens of a sequence

    def pass_seconds(self, model: Shape, gpus: int, sequences: int, rows: int) -> float:
        """Seconds that the kernels take in a pass over `rows` rows of `sequences` sequences in all."""
        c = self.constants
        g = self.gpu
        read = model.weight_bytes + sequences * self.context * model.kv_bytes
        work = model.flops(rows, self.context)
        stream = max(read / (c.bandwidth * g.bandwidth), work / (c.matrix * g.matrix)) / gpus
        launches = KERNELS_OF_LAYER * g.launch
        reduces = 2 * g.reduce_seconds(gpus, BF16 * rows * model.hidden)  # after attention and after the MLP
        return stream + model.layers * (launches + reduces)

    def verify(self, sequences: int, rows: int) -> float:
        """Seconds of a pass of the target."""
        return self.pass_seconds(self.target, self.gpus, sequences, rows) + self.constants.host

    def draft(self, sequences: int, rows: int) -> float:
        """Seconds of a pass of the draft."""
        return self.pass_seconds(self.draft_model, 1, sequences, rows) + self.constants.draft_host

    def fits(self, sequences: int = 1) -> bool:
        """Whether weights and KV cache leave a tenth of the memory free."""
        t = self.target
        table = BF16 * t.hidden * t.vocab
        return t.weight_bytes + table + sequences * self.context * t.kv_bytes <= 0.9 * self.gpus * self.gpu.memory
