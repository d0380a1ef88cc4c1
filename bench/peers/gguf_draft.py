"""Converts a draft that hf_draft wrote to a GGUF file, for systems that read no Hugging Face folders."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFValueType as Type

from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.families import family_of
from ssd.model.gguf.config import ARCHITECTURES
from ssd.model.gguf.weights import LAYER_TENSORS, OTHER_TENSORS
from ssd.model.values import read_json
from ssd.model.weights import tensor_shapes

from .gguf_file import copied, write

KINDS = {architecture: kind for kind, architecture in ARCHITECTURES.items()}
NAMES = {ours: theirs for theirs, ours in OTHER_TENSORS.items()}
LAYER_NAMES = {ours: theirs for theirs, ours in LAYER_TENSORS.items()}


def convert(folder: Path, target: Path, precision: str, path: Path) -> None:
    """Writes the draft in a folder to a GGUF file. target: a GGUF file, whose tokenizer the draft takes. Raises
    ValueError if the draft's architecture is not one of KINDS, its RoPE is scaled, or its vocabulary differs from the
    target's."""
    config = LlamaConfig.from_folder(folder)
    reader = gguf.GGUFReader(target)
    architecture = family_of(read_json(folder / "config.json")).architecture
    vocab = token_count(reader)
    if architecture not in KINDS:
        raise ValueError(f"{folder}: got {architecture}, wanted {' or '.join(KINDS)}")
    if config.rope.type != "default":
        raise ValueError(f"{folder}: got RoPE of type {config.rope.type}, wanted the default")
    if config.vocab_size != vocab:
        raise ValueError(f"{folder}: got a vocabulary of {config.vocab_size} tokens, wanted the target's {vocab}")
    kind = KINDS[architecture]
    weights = Checkpoint(folder)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if kind == "llama" else {}

    def tensors():
        for name, shape in tensor_shapes(config).items():
            rows = weights.tensor(name, shape).float().numpy()
            paired = heads.get(name.split(".")[-2])
            yield gguf_name(name), pairs(rows, paired) if paired else rows

    metadata = [(f"{kind}.{key}", *value, None) for key, value in sizes(config).items()]
    write(path, precision, kind, metadata + copied(reader, "tokenizer."), tensors())


def token_count(reader: gguf.GGUFReader) -> int:
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def sizes(config: LlamaConfig) -> dict[str, tuple]:
    whole = {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    real = {"rope.freq_base": config.rope.theta, "attention.layer_norm_rms_epsilon": config.rms_norm_eps}
    return {k: (v, Type.UINT32) for k, v in whole.items()} | {k: (v, Type.FLOAT32) for k, v in real.items()}


def gguf_name(name: str) -> str:
    """The inverse of ssd.model.gguf.weights.hugging_face_name."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *middle, suffix = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(middle)]}.{suffix}"


def pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ssd.model.gguf.weights.halves."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
