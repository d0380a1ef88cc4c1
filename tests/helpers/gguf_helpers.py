"""One tiny model in two forms: a GGUF file, and a folder with its weights dequantised."""

import json

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from ssd.model.config import LlamaConfig
from ssd.model.gguf.weights import LAYER_TENSORS, OTHER_TENSORS
from ssd.model.safetensors_file import write_safetensors
from ssd.model.weights import tensor_shapes

CONFIG = {
    "vocab_size": 99,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "llama, biases": {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3, tied": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
}
NAMES = {ours: theirs for theirs, ours in OTHER_TENSORS.items()}
LAYER_NAMES = {ours: theirs for theirs, ours in LAYER_TENSORS.items()}
TOKENS = ["<s>", "<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(89)), "▁", *"ehlot▁ha"[:6]]


def stored(random: np.random.Generator, shape: tuple[int, int], kind: Type) -> np.ndarray:
    """Rows of a random matrix in this GGUF type."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in (Type.Q4_K, Type.Q6_K):  # the package only reads these: random bytes, with scales of a suitable size
        blocks = random.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
        scales = random.uniform(1e-3, 2e-3, (*blocks.shape[:2], 2)).astype(np.float16).view(np.uint8)
        if kind == Type.Q4_K:
            blocks[..., :4] = scales
        else:
            blocks[..., -2:], blocks[..., -18:-2] = scales[..., :2], random.integers(0, 8, (*blocks.shape[:2], 16))
        return blocks.reshape(shape[0], -1)
    return gguf.quants.quantize(random.normal(0, 0.2, shape).astype(np.float32), kind)


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order of a GGUF file of a Llama."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *middle, suffix = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(middle)]}.{suffix}"


def write_pair(folder, kind: Type, changes: dict, meta=None, types=None, extra=None):
    """(path of the GGUF file, folder). meta: (name, value) pairs of the architecture; types: types of single tensors,
    by parts of their names; extra: float32 tensors beside those of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = CONFIG | changes
    config, arch = LlamaConfig.from_dict(raw), raw["architectures"][0].removesuffix("ForCausalLM").lower()
    writer, random, plain = gguf.GGUFWriter(folder / "model.gguf", arch), np.random.default_rng(0), {}
    for name, shape in tensor_shapes(config).items():
        wanted = next((t for part, t in (types or {}).items() if part in name), kind)
        if len(shape) == 1:
            wanted = Type.F32
            rows = random.normal(float(name.endswith("norm.weight")), 0.2, shape).astype(np.float32)
            plain[name] = rows
        else:
            rows = stored(random, shape, wanted)
            plain[name] = gguf.quants.dequantize(rows, wanted).astype(np.float32)
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        rows = paired(rows, heads) if heads and arch == "llama" else rows
        writer.add_tensor(gguf_name(name), rows, raw_dtype=wanted)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types([3, 2, 3, *[6] * 89, *[1] * (len(TOKENS) - 92)])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    for name, value in (meta or {}).items():
        writer.add_key_value(f"{arch}.{name}", value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "config.json").write_text(json.dumps(raw))
    write_safetensors(folder / "model.safetensors", {n: t.shape for n, t in plain.items()}, plain.values())
    return folder / "model.gguf", folder


def logits(model, n=12):
    from model_helpers import one_request

    ids = torch.randint(0, model.config.vocab_size, (n,), generator=torch.Generator().manual_seed(1))
    return model.forward(one_request(ids), model.new_kv_cache(1))
