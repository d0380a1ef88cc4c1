"""The configuration of the model in a GGUF file, in the words of config.json."""

from dataclasses import replace

import numpy as np
from gguf.constants import GGMLQuantizationType

from ..config import END_OF_TURN, LlamaConfig
from .file import GGUFFile
from .metadata import Metadata

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"
CONTROL = 3  # type of a special token


def llama_config(file: GGUFFile) -> LlamaConfig:
    """The configuration of the model in a GGUF file.

    Raises ValueError that names the file: missing or unfit metadata, or an architecture, RoPE or attention that is not
    supported.
    """
    try:
        config = LlamaConfig.from_dict(read_config(file))
    except ValueError as e:
        raise e if str(file.path) in str(e) else ValueError(f"{file.path}: {e}") from None
    if ROPE_FACTORS not in file.tensors:
        return config
    factors = file.tensors[ROPE_FACTORS]
    if factors.type != GGMLQuantizationType.F32:
        raise ValueError(f"{file.path}: {ROPE_FACTORS} is of type {factors.type.name}, wanted F32")
    periods = tuple(factors.data.view("<f4").ravel().tolist())
    if len(periods) != config.head_dim // 2 or not all(0 < p < float("inf") for p in periods):
        raise ValueError(f"{file.path}: {ROPE_FACTORS} holds {len(periods)} factors, wanted {config.head_dim // 2}")
    return replace(config, rope=replace(config.rope, period_factors=periods))


def read_config(file: GGUFFile) -> dict:
    """The content of config.json for the model."""
    meta, tensors = Metadata(file.path, file.meta), file.tensors
    kind = meta.get("general.architecture", str)
    if kind not in ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture {kind!r} is not supported: wanted {', '.join(ARCHITECTURES)}")

    def get(name, default=None, kind_of_value=int):
        key = f"{kind}.{name}"
        if isinstance(file.meta.get(key), list):  # one value for each layer
            values = meta.array(key, kind_of_value)
            if len(set(values)) != 1:
                raise ValueError(f"{file.path}: {key} differs between layers, which is not supported")
            return values[0]
        value = meta.get(key, kind_of_value, default)
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
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", None, float),
        "rope_theta": get("rope.freq_base", 10000.0, float),
        "rope_scaling": rope_scaling(file, get),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "bos_token_id": meta.optional("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": meta.optional("tokenizer.ggml.padding_token_id", int),
        "dtype": "float32",
    }


def shortest(value: float) -> float:
    """The shortest decimal number that is this float32."""
    return float(str(np.float32(value)))


def rope_scaling(file: GGUFFile, get) -> dict | None:
    factor = get("rope.scaling.factor", get("rope.scale_linear", 0.0, float), float)
    kind = get("rope.scaling.type", "linear" if factor not in (0, 1) else "none", str)
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": get("rope.scaling.original_context_length", get("context_length")),
            "beta_fast": get("rope.scaling.yarn_beta_fast", 32.0, float),
            "beta_slow": get("rope.scaling.yarn_beta_slow", 1.0, float),
        }
    if kind != "linear":
        raise ValueError(f"{file.path}: RoPE scaling {kind!r} is not supported: wanted none, linear or yarn")
    return {"rope_type": "linear", "factor": factor}


def end_ids(meta: Metadata) -> list[int]:
    """The ids that end an answer: those that the file names, and special tokens known to do so."""
    named = [meta.optional(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")]
    tokens, kinds = (meta.optional(f"tokenizer.ggml.{name}", list) or [] for name in ("tokens", "token_type"))
    pairs = enumerate(zip(tokens, kinds, strict=False))
    known = [i for i, (token, kind) in pairs if kind == CONTROL and token in END_OF_TURN]
    return list(dict.fromkeys(i for i in (*named, *known) if i is not None))
