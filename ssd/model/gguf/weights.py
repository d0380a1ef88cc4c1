"""The tensors of a GGUF file under the names of a Hugging Face checkpoint: dequantised, or in blocks as stored.

Files of the architecture llama have the rows of q and k in pairs (x0, x_{D/2}, x1, ...), for the adjacent-pair form of
RoPE; here they are in halves, as in Hugging Face checkpoints.
"""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from ..config import LlamaConfig
from ..weights import Checkpoint
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


def hugging_face_name(name: str) -> str | None:
    """None for a tensor that has no place there."""
    if name in OTHER_TENSORS:
        return OTHER_TENSORS[name]
    match name.split("."):
        case ["blk", layer, kind, ("weight" | "bias") as suffix] if kind in LAYER_TENSORS:
            return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.{suffix}"
    return None


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pairs (0, D/2, 1, D/2 + 1, ...) to halves (0, 1, ...)."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def mostly_four_bits(file: GGUFFile) -> bool:
    """Whether most of its weights are in blocks that q4 keeps."""
    sizes = [(t.data.size if t.type in FOUR_BITS else 0, t.data.size) for t in file.tensors.values()]
    return 2 * sum(n for n, _ in sizes) > sum(n for _, n in sizes)


class GGUFCheckpoint(Checkpoint):
    """blocks: whether `matrices` gives blocks where the file has such. Raises ValueError as Checkpoint does, and for
    a tensor that a Llama does not have, or of a type that cannot be dequantised."""

    def __init__(self, file: GGUFFile, config: LlamaConfig, blocks: bool = False):
        self.folder, self.blocks, self.where = file.path, blocks, {}
        for stored in file.tensors:
            name = hugging_face_name(stored)
            if name:
                self.where[name] = (self, stored)
            elif stored != ROPE_FACTORS:
                raise ValueError(f"tensor {stored} in {file.path} has no place in a model of this architecture")
        self.path, self.tensors = file.path, file.tensors
        paired = file.meta["general.architecture"] == "llama"
        self.heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if paired else {}

    def shape(self, stored: str) -> list[int]:
        return list(self.tensors[stored].shape)

    def read(self, stored: str) -> torch.Tensor:
        """float32."""
        tensor = self.tensors[stored]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.type)
        except NotImplementedError:
            raise ValueError(f"tensor {stored} in {self.path}: type {tensor.type.name} is not supported") from None
        return torch.from_numpy(self._ordered(stored, values).astype(np.float32))

    def matrices(self, names: list[str], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        found = [self.tensors[self.where[name][1]] for name in names]
        if not self.blocks or any(t.type in FLOATS for t in found):
            return super().matrices(names, shapes)
        for name, shape in zip(names, shapes, strict=True):
            self.check(name, shape)
        return [self._blocks(self.where[name][1], common_type(found)) for name in names]

    def _ordered(self, stored: str, rows: np.ndarray) -> np.ndarray:
        heads = self.heads.get(stored.split(".")[-2])
        return halves(rows, heads) if heads else rows

    def _blocks(self, stored: str, kind: Type) -> torch.Tensor:
        """uint8 [N, K / 32, bytes]."""
        tensor, size = self.tensors[stored], gguf.GGML_QUANT_SIZES[kind][1]
        if tensor.type == kind:
            rows = self._ordered(stored, tensor.data)
        elif kind == Type.Q4_1:
            rows = self._ordered(stored, (of_k if tensor.type == Type.Q4_K else with_minimum)(tensor.data))
        else:
            rows = gguf.quants.quantize(self.read(stored).numpy(), kind)
        blocks = rows.reshape(len(rows), -1, size).copy()
        scales = blocks[..., : 4 if kind == Type.Q4_1 else 2].copy().view("<f2")
        if not np.isfinite(scales).all():
            raise ValueError(f"tensor {stored} in {self.path} holds NaN or infinite values")
        return torch.from_numpy(blocks)


def common_type(tensors: list[GGUFTensor]) -> Type:
    """The type for matrices that are packed as one: theirs, Q4_1 for the others of four bits, else Q8_0."""
    types = {t.type for t in tensors}
    if len(types) == 1 and types <= set(BLOCKS):
        return types.pop()
    return Type.Q4_1 if types <= set(FOUR_BITS) else Type.Q8_0


def with_minimum(rows: np.ndarray) -> np.ndarray:
    """Rows of blocks of Q4_0 as those of Q4_1: d (q - 8) = d q + m with m = -8 d, exactly."""
    blocks = rows.reshape(-1, 18)
    d = blocks[:, :2].copy()
    m = (d.view("<f2") * np.float16(-8)).view(np.uint8)
    return np.concatenate([d, m, blocks[:, 2:]], 1).reshape(len(rows), -1)


def of_k(rows: np.ndarray) -> np.ndarray:
    """Rows of blocks of Q4_K as those of Q4_1: the same numbers, the scale and minimum of 32 weights, each a product
    of two there, rounded to float16."""
    blocks = rows.reshape(-1, 144)
    outer = blocks[:, :4].copy().view("<f2").astype(np.float32)  # scale of the scales, and of the minima
    inner = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])  # two of [n, 8]
    scale, minimum = (outer[:, i : i + 1] * inner[i] for i in (0, 1))
    both = np.stack([scale, -minimum], 2).astype("<f2").view(np.uint8)  # [n, 8, 4]
    quants = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    quants = quants.reshape(-1, 8, 2, 16)
    return np.concatenate([both, quants[:, :, 0] | quants[:, :, 1] << 4], 2).reshape(len(rows), -1)
