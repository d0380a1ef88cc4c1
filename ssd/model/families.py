"""Architectures that differ little from a Llama, and the checkpoints of theirs that are refused."""

from dataclasses import dataclass, field

from .values import boolean, show, whole


@dataclass(frozen=True)
class Family:
    """What sets an architecture apart. defaults: values for fields that its config.json may leave out."""

    architecture: str
    qkv_bias: bool | None = None  # None: attention_bias decides, for o too
    mlp_bias: bool | None = False  # None: mlp_bias decides
    qk_norm: bool = False
    windows: bool = False  # whether sliding_window applies
    defaults: dict = field(default_factory=dict)


QWEN = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
MISTRAL = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0, "num_key_value_heads": 8}
FAMILIES = {  # by model_type
    "llama": Family("LlamaForCausalLM", mlp_bias=None),
    "mistral": Family("MistralForCausalLM", qkv_bias=False, windows=True, defaults=MISTRAL),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, windows=True, defaults=QWEN),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, windows=True, defaults=QWEN | {"head_dim": 128}),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def family_of(config: dict) -> Family:
    """The family that the parsed config.json names. Raises ValueError for another one, and for experts."""
    for name in EXPERTS:
        if isinstance(config.get(name), int) and config[name] > 1:
            raise ValueError(f"mixture-of-experts checkpoints are not supported ({name} {config[name]}): wanted dense")
    architectures = config.get("architectures") or [config.get("model_type")]
    if not isinstance(architectures, list):
        raise ValueError(f"architectures: got {show(architectures)}, wanted a list of names")
    named = architectures[0]
    for kind, family in FAMILIES.items():
        if named in (kind, family.architecture):
            return family
    wanted = ", ".join(family.architecture for family in FAMILIES.values())
    raise ValueError(f"architecture {show(named)} is not supported: wanted one of {wanted}")


def check_windows(config: dict, family: Family, layers: int, context: int) -> None:
    """Raises ValueError where a layer of the config.json, defaults filled in, does not see all of the context."""
    kinds, window = config.get("layer_types") or [], config.get("sliding_window")
    if not isinstance(kinds, list):
        raise ValueError(f"layer_types: got {show(kinds)}, wanted a list of names")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(f"layer_types: {show(kind)} is not supported, wanted 'full_attention'")
    slides = "sliding_attention" in kinds
    if family.windows and not kinds:
        slides = boolean(config, "use_sliding_window") and window is not None
        slides = slides and (not config["max_window_layers"] or whole(config, "max_window_layers") < layers)
    if slides and not (type(window) is int and window >= context):
        size = f"sliding_window {show(window)}, context {context}"
        raise ValueError(f"a sliding window is not supported ({size}): wanted full attention")
