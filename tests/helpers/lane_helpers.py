"""An LLM with two lanes that take turns."""

from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM


def make(tiny_folder, tiny_target, draft, **options):
    options = {"threads": 1, "draft_threads": 1, "seed": 3, "mode": "ssd", "lockstep": True} | options
    return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **options)
