"""What the metadata of a GGUF file say about a model, in the words of config.json."""

from dataclasses import replace

import numpy as np

from ..config import LlamaConfig
from .file import GGUFFile

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>")  # of an answer, besides eos
ROPE_FACTORS = "rope_freqs.weight"


def llama_config(file: GGUFFile) -> LlamaConfig:
    """Raises ValueError that names the file: an architecture or a kind of RoPE or attention that is not supported, or
    missing metadata."""
    try:
        config = LlamaConfig.from_dict(read_config(file))
    except ValueError as e:
        raise e if str(file.path) in str(e) else ValueError(f"{file.path}: {e}") from None
    if ROPE_FACTORS not in file.tensors:
        return config
    periods = tuple(file.tensors[ROPE_FACTORS].data.view("<f4").ravel().tolist())
    if len(periods) != config.head_dim // 2 or not all(0 < p < float("inf") for p in periods):
        raise ValueError(f"{file.path}: {ROPE_FACTORS} holds {len(periods)} factors, wanted {config.head_dim // 2}")
    return replace(config, rope=replace(config.rope, period_factors=periods))


def read_config(file: GGUFFile) -> dict:
    """config.json of the model."""
    meta, tensors = file.meta, file.tensors
    kind = meta.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture {kind!r} is not supported: wanted {', '.join(ARCHITECTURES)}")

    def get(name, default=None):
        value = meta.get(f"{kind}.{name}", default)
        if isinstance(value, list):  # one for each layer
            if len(set(value)) != 1:
                raise ValueError(f"{file.path}: {kind}.{name} differs between layers, which is not supported")
            value = value[0]
        if value is None:
            raise ValueError(f"{file.path}: {kind}.{name} is missing in its metadata")
        return shortest(value) if isinstance(value, float) else value

    if "token_embd.weight" not in tensors:
        raise ValueError(f"{file.path}: tensor token_embd.weight is missing")
    if get("expert_count", 0):
        raise ValueError(f"{file.path}: mixture-of-experts models are not supported: wanted a dense one")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    dim = get("attention.key_length", hidden // max(1, heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if get(name, dim) != dim:
            raise ValueError(f"{file.path}: {kind}.{name} {get(name)} is not supported: wanted the head's {dim}")
    if 0 < get("attention.sliding_window", 0) < get("context_length"):
        raise ValueError(f"{file.path}: a sliding window is not supported: wanted full attention")
    eos = end_ids(meta)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": dim,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(file, get),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def shortest(value: float) -> float:
    """The decimal number that a float32 was written from."""
    return float(str(np.float32(value)))


def rope_scaling(file: GGUFFile, get) -> dict | None:
    factor = get("rope.scaling.factor", get("rope.scale_linear", 0.0))
    kind = get("rope.scaling.type", "linear" if factor not in (0, 1) else "none")
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": get("rope.scaling.original_context_length", get("context_length")),
            "beta_fast": get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": get("rope.scaling.yarn_beta_slow", 1.0),
        }
    if kind != "linear":
        raise ValueError(f"{file.path}: RoPE scaling {kind!r} is not supported: wanted none, linear or yarn")
    return {"rope_type": "linear", "factor": factor}


def end_ids(meta: dict) -> list[int]:
    """Ids that end an answer: those that the file names, and special tokens that are known to."""
    named = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    kinds = zip(meta.get("tokenizer.ggml.tokens", []), meta.get("tokenizer.ggml.token_type", []), strict=False)
    known = [i for i, (token, kind) in enumerate(kinds) if kind == 3 and token in ENDS]
    return list(dict.fromkeys(i for i in (*named, *known) if i is not None))
