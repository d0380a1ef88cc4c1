"""What config.json and generation_config.json say about a Llama or a model of its kin."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from .families import check_windows, family_of

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: type is one of ROPE_TYPES; the factors count where the type uses them."""

    type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # of cos and sin
    truncate: bool = True
    period_factors: tuple[float, ...] | None = None  # by which the period of each pair of dimensions is longer


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int  # as in config.json; `max_positions` is how far the model may be used
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    attention_bias: bool  # of q, k and v
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    output_bias: bool = False  # of attention's output
    qk_norm: bool = False  # an RMSNorm of every head of q and k before it is rotated

    @property
    def max_positions(self) -> int:
        """Longest sequence in tokens: linear, dynamic and YaRN scaling stretch the trained length by their factor."""
        given, rope = self.max_position_embeddings, self.rope
        if rope.type == "yarn":  # which some config.json have stretched already
            return max(given, int(rope.original_max_positions * rope.factor))
        return int(given * rope.factor) if rope.type in ("linear", "dynamic") else given

    @classmethod
    def from_folder(cls, folder: str | Path) -> "LlamaConfig":
        """Reads config.json and, if there, generation_config.json (its EOS ids win).

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
        """The same from the parsed files."""
        family = family_of(config)
        config = family.defaults | config
        check_supported(config)

        def integer(name, default=None):
            value = config.get(name)
            value = default if value is None else value
            if value is None:
                raise ValueError(f"{name} is missing")
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: got {value!r}, wanted a whole number of at least 1")
            return value

        heads, hidden = integer("num_attention_heads"), integer("hidden_size")
        kv_heads = integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ValueError(f"num_key_value_heads: got {kv_heads}, wanted a divisor of num_attention_heads ({heads})")
        if config.get("head_dim") is None and hidden % heads:
            raise ValueError(f"hidden_size: got {hidden}, wanted a multiple of num_attention_heads ({heads})")
        head_dim = integer("head_dim", hidden // heads)
        if head_dim % 2:
            raise ValueError(f"head_dim: got {head_dim}, wanted an even number")
        max_positions = integer("max_position_embeddings", 2048)
        eos = (generation or {}).get("eos_token_id")
        eos = config.get("eos_token_id") if eos is None else eos
        eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if any(type(token) is not int for token in eos):
            raise ValueError(f"eos_token_id: got {eos!r}, wanted whole numbers")
        layers, attention_bias = integer("num_hidden_layers"), bool(config.get("attention_bias", False))
        made = cls(
            vocab_size=integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=integer("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rms_norm_eps=number("rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
            rope=read_rope(config, max_positions),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            mlp_bias=bool(config.get("mlp_bias", False)) if family.mlp_bias is None else family.mlp_bias,
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=tuple(eos),
            output_bias=attention_bias and family.qkv_bias is None,
            qk_norm=family.qk_norm,
        )
        check_windows(config, family, layers, made.max_positions)
        return made


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises ValueError that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise ValueError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: got a {type(content).__name__}, wanted an object")
    return content


def number(name: str, value) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}: got {value!r}, wanted a positive number")
    return float(value)


def check_supported(config: dict) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported: wanted 'silu'")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise ValueError(f"weights quantised by {method!r} are not supported: wanted float32, float16 or bfloat16")


def read_rope(config: dict, max_positions: int) -> Rope:
    """From `rope_scaling` (with rope_theta beside it) or from `rope_parameters` (with rope_theta inside)."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise ValueError(f"rope_scaling: got {given!r}, wanted an object")
    if nested := [name for name, value in given.items() if isinstance(value, dict)]:
        raise ValueError(f"rope_parameters of {nested[0]} alone are not supported: wanted the same in all layers")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type {kind!r} is not supported: wanted one of {', '.join(ROPE_TYPES)}")
    if given.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise ValueError("partial_rotary_factor is not supported: wanted 1")
    fields = {"theta": number("rope_theta", given.get("rope_theta", config.get("rope_theta", 10000.0)))}
    wanted = {"default": [], "llama3": ["factor", "low_freq_factor", "high_freq_factor"]}
    for name in wanted.get(kind, ["factor"]):
        if name not in given:
            raise ValueError(f"{name} is missing in rope_scaling of type {kind!r}")
        fields[name] = number(name, given[name])
    if kind == "yarn":
        fields |= {name: number(name, given[name]) for name in ("beta_fast", "beta_slow") if given.get(name)}
        fields |= {"attention_factor": attention_factor(given), "truncate": bool(given.get("truncate", True))}
    original = config.get("original_max_position_embeddings", given.get("original_max_position_embeddings"))
    return Rope(kind, **fields, original_max_positions=int(original or max_positions))


def attention_factor(given: dict) -> float:
    """By how much YaRN sharpens attention: given, or by its equation 22, as a ratio where mscale_all_dim is given."""
    if given.get("attention_factor") is not None:
        return number("attention_factor", given["attention_factor"])

    def scale(name):
        return 0.1 * number(name, given.get(name) or 1) * math.log(max(1, given["factor"])) + 1

    both = given.get("mscale") and given.get("mscale_all_dim")
    return scale("mscale") / scale("mscale_all_dim") if both else 0.1 * math.log(max(1, given["factor"])) + 1
