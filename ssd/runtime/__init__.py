"""The engine: requests in, tokens and text out."""

from .engine.engine import Engine
from .engine.metrics import Metrics
from .llm import LLM
from .options import EngineOptions
from .output import Chunk, Output
from .sampling.sampling_params import SamplingParams
from .sampling.seeds import sample_seed

__all__ = ["LLM", "Chunk", "Engine", "EngineOptions", "Metrics", "Output", "SamplingParams", "sample_seed"]
