"""The engine: requests in, tokens and text out."""

from .engine import Engine
from .llm import LLM
from .metrics import Metrics
from .options import EngineOptions
from .output import Chunk, Output
from .sampling_params import SamplingParams

__all__ = ["LLM", "Chunk", "Engine", "EngineOptions", "Metrics", "Output", "SamplingParams"]
