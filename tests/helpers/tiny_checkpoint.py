"""A random Llama of a few thousand weights with a byte-level tokenizer and a chat template, as a folder of files."""

import json

import tokenizers
import torch
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\n' }}"
)


def weights(config: dict) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
        layer |= {"self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
        layer |= {"mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {
        name: torch.randn(shape, generator=random) * 0.3 if len(shape) == 2 else torch.ones(shape)
        for name, shape in shapes.items()
    }


def write(folder, **changes):
    """Writes the checkpoint and returns its folder. changes: keys of config.json; None removes a key."""
    config = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(CONFIG | {k: v for k, v in changes.items() if k in CONFIG}), folder / "model.safetensors")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens(["<|unused|>", "<|im_start|>", "<|im_end|>"])  # 256, 257, 258
    bpe.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder
