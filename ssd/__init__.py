"""Speculative speculative decoding for Llama-class models."""

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name):  # the kernels are used alone, so the runtime is imported when it is asked for
    if name in __all__:
        from ssd import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module 'ssd' has no attribute {name!r}")
