"""Rotary position embedding (Su et al., arXiv 2104.09864) with the scalings that Llama checkpoints use."""

import math

import torch

from .config import LlamaConfig


def rope_tables(config: LlamaConfig, max_positions: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_positions, head_dim / 2], of position times inverse frequency.

    A row depends on its position alone. With dynamic NTK scaling the frequencies of position p are those of a
    sequence of max(p + 1, max_position_embeddings) tokens. Decoding token by token gives the same: a growing
    sequence keeps its keys, and chunks of any size agree.
    """
    positions = torch.arange(config.max_positions if max_positions is None else max_positions)
    angles = positions[:, None].float() * inverse_frequencies(config, positions)
    scale = config.rope.attention_factor
    return angles.cos() * scale, angles.sin() * scale


def inverse_frequencies(config: LlamaConfig, positions: torch.Tensor) -> torch.Tensor:
    """float32 [head_dim / 2], or [positions, head_dim / 2] where they depend on the position."""
    rope, dim = config.rope, config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    plain = 1.0 / rope.theta**exponents
    if rope.period_factors:
        plain = plain / torch.tensor(rope.period_factors)
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "dynamic":
        trained = config.max_position_embeddings
        lengths = (positions + 1).clamp_min(trained)[:, None]
        stretch = (rope.factor * lengths / trained) - (rope.factor - 1)
        theta = rope.theta * (stretch.double() ** (dim / (dim - 2))).float()  # far positions depend on the last bit
        return 1.0 / theta**exponents
    if rope.type == "llama3":
        return llama3_frequencies(config, plain)
    if rope.type == "yarn":
        return yarn_frequencies(config, exponents)
    return plain


def llama3_frequencies(config: LlamaConfig, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3 slows long waves by `factor`, keeps short ones, and blends those between by their length."""
    rope = config.rope
    low, high, context = rope.low_freq_factor, rope.high_freq_factor, rope.original_max_positions
    wave = 2 * math.pi / plain
    blend = (context / wave - low) / (high - low)
    slowed = plain / rope.factor
    blended = (1 - blend) * slowed + blend * plain
    return torch.where(wave > context / low, slowed, torch.where(wave < context / high, plain, blended))


def yarn_frequencies(config: LlamaConfig, exponents: torch.Tensor) -> torch.Tensor:
    """YaRN (Peng et al., arXiv 2309.00071): keeps dimensions that turn more than beta_fast times in the trained
    context, slows by `factor` those that turn less than beta_slow times, with a ramp between."""
    rope, dim = config.rope, config.head_dim

    def bound(turns):
        return dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = bound(rope.beta_fast), bound(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / (high - low or 0.001)).clamp(0, 1)
    keep, periods = 1 - ramp, rope.theta**exponents
    return 1 / (rope.factor * periods) * (1 - keep) + 1 / periods * keep
