"""From a GGUF file to a model folder: config.json, model.safetensors (float32), tokenizer files.

GGUF keeps the rows of q and k in pairs (x0, x_{D/2}, x1, ...) for the adjacent-pair form of RoPE; the folder has
them in halves, as Hugging Face checkpoints do. Tokenizers: byte-level BPE with single digits ("smollm").
"""

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from .safetensors_file import write_safetensors

CONTROL = 3  # token type of special tokens
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
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


def import_gguf(path: str | Path, folder: str | Path, progress=lambda tensors: tensors) -> None:
    """Writes the folder's files. progress wraps the list of tensors that are converted, to show how far it is.

    Raises ValueError that names the file when it is not a Llama or its tokenizer is of another kind.
    """
    folder, reader = Path(folder), gguf.GGUFReader(path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise ValueError(f"{path}: architecture {meta.get('general.architecture')!r} is not supported: wanted 'llama'")
    if (kind := (meta["tokenizer.ggml.model"], meta.get("tokenizer.ggml.pre"))) != ("gpt2", "smollm"):
        raise ValueError(f"{path}: tokenizer {'/'.join(map(str, kind))} is not supported: wanted gpt2/smollm")
    config, tensors = read_config(meta), {hugging_face_name(t.name): t for t in reader.tensors}
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def dequantised(name, tensor):
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        projection = name.split(".")[-2]
        return halves(weight, heads[projection]) if projection in heads else weight

    shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in tensors.items()}
    rows = progress(list(tensors.items()))
    write_safetensors(folder / "model.safetensors", shapes, (dequantised(*row) for row in rows))
    build_tokenizer(meta).save(str(folder / "tokenizer.json"))
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config(meta)),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pairs (0, D/2, 1, D/2 + 1, ...) to halves (0, 1, ...)."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def hugging_face_name(name: str) -> str:
    if name in OTHER_TENSORS:
        return OTHER_TENSORS[name]
    block, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.{suffix}"


def read_config(meta: dict) -> dict:
    def shortest(value):  # the decimal number that the float32 was written from
        return float(str(np.float32(value)))

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": shortest(meta["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def build_tokenizer(meta: dict) -> Tokenizer:
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL])
    return tokenizer


def tokenizer_config(meta: dict) -> dict:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    } | {name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()}
