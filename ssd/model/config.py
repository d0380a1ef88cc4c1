"""The configuration of a Llama or a related model, from config.json and generation_config.json."""

import math
from dataclasses import dataclass
from pathlib import Path

from .families import check_windows, family_of
from .values import boolean, ids, number, read_json, show, whole

WIDEST_HEAD, HEAD_STEP = 256, 16  # what the attention kernels take: multiples up to the widest
LONGEST = 1 << 24  # positions that the rotary tables may have
END_OF_TURN = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>")
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding. type is one of ROPE_TYPES; each type uses some of the factors."""

    type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # scales cos and sin
    truncate: bool = True
    period_factors: tuple[float, ...] | None = None  # stretch the period of each pair of dimensions


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int  # as in config.json; see max_positions
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    attention_bias: bool  # in q, k and v
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    output_bias: bool = False  # in attention's output projection
    qk_norm: bool = False  # an RMSNorm of every head of q and k before it is rotated

    @property
    def padded_head_dim(self) -> int:
        """The head_dim in the kernels and the KV cache: zeros fill each half up to a multiple of 16 for both."""
        return -(-self.head_dim // HEAD_STEP) * HEAD_STEP

    @property
    def max_positions(self) -> int:
        """The longest sequence in tokens. Linear, dynamic and YaRN scaling stretch the trained length."""
        given, rope = self.max_position_embeddings, self.rope
        if rope.type == "yarn":  # some config.json hold the stretched length already
            return max(given, int(rope.original_max_positions * rope.factor))
        return int(given * rope.factor) if rope.type in ("linear", "dynamic") else given

    @classmethod
    def from_folder(cls, folder: str | Path) -> "LlamaConfig":
        """Reads config.json and generation_config.json, if it is there. The EOS ids are those of both.

        Raises ValueError that names the folder, file or field: no such folder, no config.json, broken JSON,
        an architecture, activation, attention, quantisation or RoPE type that is not supported, a missing or unfit
        field.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}")
        if not (folder / "config.json").is_file():
            raise ValueError(f"no config.json in {folder}: a model folder holds config.json and *.safetensors")
        generation = folder / "generation_config.json"
        try:
            return cls.from_dict(
                read_json(folder / "config.json"), read_json(generation) if generation.is_file() else {}
            )
        except ValueError as e:
            raise e if str(folder) in str(e) else ValueError(f"{folder / 'config.json'}: {e}") from None

    @classmethod
    def from_dict(cls, config: dict, generation: dict | None = None) -> "LlamaConfig":
        """The configuration in parsed files. Raises ValueError as from_folder does."""
        family = family_of(config)
        config = family.defaults | config
        check_supported(config)

        heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
        kv_heads = whole(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ValueError(f"num_key_value_heads: got {kv_heads}, wanted a divisor of num_attention_heads ({heads})")
        if config.get("head_dim") is None and hidden % heads:
            raise ValueError(f"hidden_size: got {hidden}, wanted a multiple of num_attention_heads ({heads})")
        head_dim = whole(config, "head_dim", hidden // heads)
        if head_dim % 2 or head_dim > WIDEST_HEAD:
            raise ValueError(f"head_dim: got {head_dim}, wanted an even number, at most {WIDEST_HEAD}")
        if family.qk_norm and head_dim % HEAD_STEP:
            raise ValueError(f"head_dim: got {head_dim}, wanted a multiple of {HEAD_STEP} beside a norm of each head")
        max_positions = whole(config, "max_position_embeddings", 2048)
        eos = dict.fromkeys(ids(config, "eos_token_id") + ids(generation or {}, "eos_token_id"))
        layers, attention_bias = whole(config, "num_hidden_layers", most=10_000), boolean(config, "attention_bias")
        made = cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=whole(config, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rms_norm_eps=number(config, "rms_norm_eps", 1e-6),
            rope=read_rope(config, max_positions),
            tie_word_embeddings=boolean(config, "tie_word_embeddings"),
            attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            mlp_bias=boolean(config, "mlp_bias") if family.mlp_bias is None else family.mlp_bias,
            bos_token_id=next(iter(ids(config, "bos_token_id")), None),
            eos_token_ids=tuple(eos),
            output_bias=attention_bias and family.qkv_bias is None,
            qk_norm=family.qk_norm,
        )
        if made.max_positions > LONGEST:
            raise ValueError(
                f"max_position_embeddings: got {made.max_positions} after scaling, wanted at most {LONGEST}"
            )
        check_windows(config, family, layers, made.max_positions)
        return made


def check_supported(config: dict) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {show(config['hidden_act'])} is not supported: wanted 'silu'")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ValueError(f"weights quantised by {show(method)} are not supported: wanted float32, float16 or bfloat16")


def read_rope(config: dict, max_positions: int) -> Rope:
    """The rotary embedding of a config.json: `rope_scaling` beside rope_theta, or `rope_parameters` with it inside."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise ValueError(f"rope_scaling: got {show(given)}, wanted an object")
    if nested := [name for name, value in given.items() if isinstance(value, dict)]:
        raise ValueError(f"rope_parameters of {show(nested[0])} alone are not supported: wanted the same in all layers")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {show(kind)} is not supported: wanted one of {', '.join(ROPE_TYPES)}")
    if given.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise ValueError("partial_rotary_factor is not supported: wanted 1")
    theta = number({"rope_theta": config.get("rope_theta")} | given, "rope_theta", 10000.0)
    fields = {"theta": theta}
    needed = {"default": [], "llama3": ["factor", "low_freq_factor", "high_freq_factor"]}
    for name in needed.get(kind, ["factor"]):
        if name not in given:
            raise ValueError(f"{name} is missing in rope_scaling of type {kind!r}")
        fields[name] = number(given, name, most=1e6)
    name = "original_max_position_embeddings"
    original = whole({name: config.get(name) or given.get(name)}, name, max_positions)
    if kind == "yarn":
        if theta <= 1:
            raise ValueError(f"rope_theta: got {theta}, wanted more than 1 beside rope_scaling of type 'yarn'")
        fields |= {name: number(given, name) for name in ("beta_fast", "beta_slow") if given.get(name)}
        fields |= {"attention_factor": attention_factor(given), "truncate": boolean(given, "truncate", True)}
    return Rope(kind, **fields, original_max_positions=original)


def attention_factor(given: dict) -> float:
    """The factor by which YaRN sharpens attention: as given, else equation 22, a ratio with mscale_all_dim."""
    if given.get("attention_factor") is not None:
        return number(given, "attention_factor")

    def scale(name):
        return 0.1 * number(given, name, 1.0) * math.log(max(1, given["factor"])) + 1

    both = given.get("mscale") and given.get("mscale_all_dim")
    return scale("mscale") / scale("mscale_all_dim") if both else 0.1 * math.log(max(1, given["factor"])) + 1
