"""The tensors of a GGUF file under the names of a Hugging Face checkpoint: dequantised, or in blocks as stored.

Files of the architecture llama store the rows of q and k in pairs (x0, x_{D/2}, x1, ...), for the adjacent-pair form of
RoPE. They are put into halves here, as in Hugging Face checkpoints.
"""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from ..checkpoint import Checkpoint
from ..config import LlamaConfig
from ..ring import Ring
from .config import ROPE_FACTORS
from .file import GGUFFile, GGUFTensor

LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
FOUR_BITS, BLOCKS = (Type.Q4_0, Type.Q4_1, Type.Q4_K), (Type.Q4_0, Type.Q4_1, Type.Q8_0)
FLOATS = (Type.F32, Type.F16, Type.BF16, Type.F64)
AS_STORED = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}
STEP = 1 << 20  # values dequantised at a time on their way to a device


def hugging_face_name(name: str) -> str | None:
    """The name of a tensor in a Hugging Face checkpoint, None if it has none."""
    if name in OTHER_TENSORS:
        return OTHER_TENSORS[name]
    match name.split("."):
        case ["blk", layer, kind, ("weight" | "bias") as suffix] if kind in LAYER_TENSORS:
            return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.{suffix}"
    return None


def halves(rows: np.ndarray | torch.Tensor, heads: int) -> np.ndarray | torch.Tensor:
    """The rows of each head, reordered from pairs (0, D/2, 1, D/2 + 1, ...) to halves (0, 1, ...)."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def mostly_four_bits(file: GGUFFile) -> bool:
    """Whether most weights of a file are in blocks that q4 keeps."""
    sizes = [(t.data.size if t.type in FOUR_BITS else 0, t.data.size) for t in file.tensors.values()]
    return 2 * sum(n for n, _ in sizes) > sum(n for _, n in sizes)


class GGUFCheckpoint(Checkpoint):
    """The tensors of a GGUF file. blocks: whether `matrices` returns blocks where the file has them.

    Raises ValueError as Checkpoint does, for a tensor that the model does not have, and for one whose type cannot be
    dequantised.
    """

    def __init__(self, file: GGUFFile, config: LlamaConfig, blocks: bool = False, ring: Ring | None = None):
        self.folder, self.blocks, self.where = file.path, blocks, {}
        self.ring, self.unchecked = ring, []
        for stored in file.tensors:
            name = hugging_face_name(stored)
            if name:
                self.where[name] = (self, stored)
            elif stored != ROPE_FACTORS:
                raise ValueError(f"tensor {stored} in {file.path} has no place in a model of this architecture")
        self.path, self.tensors = file.path, file.tensors
        paired = file.meta["general.architecture"] == "llama"
        self.heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if paired else {}

    @property
    def bytes_to_convert(self) -> int:
        kept = FLOATS + BLOCKS if self.blocks else FLOATS
        return sum(t.data.size for t in self.tensors.values() if t.type not in kept)

    def shape(self, stored: str) -> list[int]:
        return list(self.tensors[stored].shape)

    def read(self, stored: str) -> torch.Tensor:
        """The dequantised tensor, float32."""
        values = self._dequantised(stored, self.tensors[stored].data)
        return torch.from_numpy(self._ordered(stored, values).astype(np.float32))

    def send(self, stored: str, ring: Ring) -> torch.Tensor:
        """The tensor on the device of a ring: floats as stored, others dequantised on their way, float32."""
        tensor, at = self.tensors[stored], 0
        values, size = gguf.GGML_QUANT_SIZES[tensor.type]
        blocks = tensor.data.reshape(-1, size)

        def copy(part):
            nonlocal at
            part[:] = blocks.reshape(-1)[at : at + len(part)]
            at += len(part)

        def dequantise(part):
            nonlocal at
            out = part.view(np.float32).reshape(-1, values)
            for i in range(0, len(out), STEP // values):
                some = out[i : i + STEP // values]
                some[:] = self._dequantised(stored, blocks[at : at + len(some)])
                at += len(some)

        dtype = AS_STORED.get(tensor.type)
        sent = ring.send(tensor.shape, dtype or torch.float32, copy if dtype else dequantise)
        return self._ordered(stored, sent)

    def _dequantised(self, stored: str, data: np.ndarray) -> np.ndarray:
        kind = self.tensors[stored].type
        try:
            return gguf.quants.dequantize(data, kind)
        except NotImplementedError:
            raise ValueError(f"tensor {stored} in {self.path}: type {kind.name} is not supported") from None

    def matrices(self, names: list[str], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        found = [self.tensors[self.where[name][1]] for name in names]
        if not self.blocks or any(t.type in FLOATS for t in found):
            return super().matrices(names, shapes)
        for name, shape in zip(names, shapes, strict=True):
            self.check(name, shape)
        return [self._blocks(self.where[name][1], common_type(found)) for name in names]

    def _ordered(self, stored: str, rows: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
        heads = self.heads.get(stored.split(".")[-2])
        return halves(rows, heads) if heads else rows

    def _blocks(self, stored: str, kind: Type) -> torch.Tensor:
        """The blocks of a tensor in that format, uint8 [N, K / 32, bytes]."""
        tensor, size = self.tensors[stored], gguf.GGML_QUANT_SIZES[kind][1]
        if tensor.type == kind:
            rows = self._ordered(stored, tensor.data)
        elif kind == Type.Q4_1:
            rows = self._ordered(stored, (q4_1_from_q4_k if tensor.type == Type.Q4_K else q4_1_from_q4_0)(tensor.data))
        else:
            rows = gguf.quants.quantize(self.read(stored).numpy(), kind)
        blocks = rows.reshape(len(rows), -1, size).copy()
        scales = blocks[..., : 4 if kind == Type.Q4_1 else 2].copy().view("<f2")
        if not np.isfinite(scales).all():
            raise ValueError(f"tensor {stored} in {self.path} holds NaN or infinite values")
        return torch.from_numpy(blocks)


def common_type(tensors: list[GGUFTensor]) -> Type:
    """The type for matrices that are packed as one: their own if they share one, Q4_1 for four bits, else Q8_0."""
    types = {t.type for t in tensors}
    if len(types) == 1 and types <= set(BLOCKS):
        return types.pop()
    return Type.Q4_1 if types <= set(FOUR_BITS) else Type.Q8_0


def q4_1_from_q4_0(rows: np.ndarray) -> np.ndarray:
    """Q4_1 blocks with the numbers of Q4_0 blocks: d (q - 8) = d q + m with m = -8 d, exactly."""
    blocks = rows.reshape(-1, 18)
    d = blocks[:, :2].copy()
    m = (d.view("<f2") * np.float16(-8)).view(np.uint8)
    return np.concatenate([d, m, blocks[:, 2:]], 1).reshape(len(rows), -1)


def q4_1_from_q4_k(rows: np.ndarray) -> np.ndarray:
    """Q4_1 blocks with the numbers of Q4_K blocks, whose scales and minima are products, rounded to float16 here."""
    blocks = rows.reshape(-1, 144)
    outer = blocks[:, :4].copy().view("<f2").astype(np.float32)  # scale of the scales, and of the minima
    inner = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])  # two of [n, 8]
    scale, minimum = (outer[:, i : i + 1] * inner[i] for i in (0, 1))
    both = np.stack([scale, -minimum], 2).astype("<f2").view(np.uint8)  # [n, 8, 4]
    quants = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    quants = quants.reshape(-1, 8, 2, 16)
    return np.concatenate([both, quants[:, :, 0] | quants[:, :, 1] << 4], 2).reshape(len(rows), -1)
