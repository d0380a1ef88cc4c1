"""LLM: the public face of the engine. Prompts in, text out."""

import threading
from collections.abc import Callable
from dataclasses import fields

import torch

from ssd import kernels

from .devices.bandwidth import fraction
from .devices.free_memory import weights_fit
from .devices.placement import device_of, placement_of
from .devices.threads import bind
from .engine.engine import Engine
from .engine.metrics import Metrics
from .engine.trace import Trace
from .engine.warm_up import warm_up
from .factory import kv_parts, load_drafts, make_speculator, verify_cores
from .options import EngineOptions, SpeculationOptions
from .output import Output
from .requests import Prompt, Requests, is_one
from .sampling.grammar import Grammars
from .sampling.sampling_params import SamplingParams
from .stream import Stream, logprobs_of
from .turns import Turns


class LLM:
    """A model ready to answer.

    target: a folder or GGUF file, or the id of a model; None is the default target. dtype: "bf16", "int8", "fp32" or
    "q4" weights; None is q4 for a GGUF file of four bits, else bf16. options: fields of EngineOptions and of
    SpeculationOptions. Calls may come from several threads; they take turns, pass by pass. Raises ValueError or
    TypeError naming the argument, OSError where files cannot be read, MemoryError where weights or KV do not fit.
    """

    def __init__(self, target: str | None = None, dtype: str | None = None, **options):
        from ssd.model import hub
        from ssd.model.llama import Llama
        from ssd.model.tokenizer import Tokenizer

        engine, speculation = split(options)
        bind(verify_cores(speculation, engine))  # loading packs in parallel too
        folder = hub.resolve(target)
        device = device_of(engine.device)
        with weights_fit("target", device):
            model = Llama.load(folder, dtype, device=device, prompt_attention=engine.prompt_attention)
        drafts = None if speculation.mode == "ar" else load_drafts(speculation, target, model)
        self._set_up(model, Tokenizer(folder), engine, speculation, drafts)

    @classmethod
    def from_model(cls, model, tokenizer, sample=kernels.sample, draft=None, backup=None, **options) -> "LLM":
        """An LLM on a loaded model and tokenizer; sample: an operator in place of that of ssd.kernels; draft: a loaded
        Draft or "ngram", for the modes that speculate; backup: a larger Draft."""
        llm = cls.__new__(cls)
        engine, speculation = split(options)
        if engine.prompt_attention == "flash" and not model.flash_attn:
            raise ValueError(
                "prompt_attention: got flash for a model that was loaded without it; ask Llama.load for it"
            )
        llm._set_up(model, tokenizer, engine, speculation, (draft, backup), sample)
        return llm

    def _set_up(
        self, model, tokenizer, options: EngineOptions, speculation: SpeculationOptions, drafts, sample=kernels.sample
    ) -> None:
        self.tokenizer, self.options, self.speculation = tokenizer, options, speculation
        longest = options.longest(model.config.max_positions)
        kv_tokens = options.size_kv(kv_parts(speculation, options, drafts, model, longest), longest)
        self.max_model_len = min(longest, kv_tokens)  # no request can outgrow either
        speculator = make_speculator(speculation, options, drafts, model, self.max_model_len, kv_tokens)
        eos_ids = {*model.config.eos_token_ids, *tokenizer.eos_ids}.intersection(range(model.config.vocab_size))
        self.engine = Engine(
            model, sample, eos_ids, max_batch=options.max_batch, max_model_len=self.max_model_len,
            kv_tokens=kv_tokens, prefill_chunk=options.prefill_chunk, speculator=speculator, rule=speculation.rule,
            nodes=speculation.nodes, prefix_caching=options.prefix_caching,
            placement=placement_of(model, verify_cores(speculation, options)),
        )  # fmt: skip
        warm_up(self.engine, speculation.width > 1)
        self.grammars = Grammars(tokenizer, self.engine.eos_ids, model.config.vocab_size)
        self.requests = Requests(tokenizer, self.grammars, model.config.vocab_size, self.max_model_len, options)
        self._turns = Turns(self.engine.cancel)
        self._bound = threading.local()

    def close(self) -> None:
        """Stop whatever runs beside the caller. An LLM that nobody holds any more stops it by itself."""
        self.engine.speculator.close()

    @property
    def metrics(self) -> Metrics:
        return self.engine.metrics

    def trace(self) -> Trace:
        """Start a record of what the lanes do, and return it."""
        trace = self.engine.trace = Trace()
        self.engine.speculator.record(trace)
        return trace

    def stats(self) -> dict:
        """The statistics of Metrics.stats, with those that the mode adds."""
        return self.metrics.stats() | self.engine.speculator.stats()

    def bandwidth_fraction(self) -> dict:
        """The share of the memory's read bandwidth that decode passes of target and draft used so far to read their
        weights. Measures the bandwidth, which takes a second. None: no such passes, or not on the CPU."""
        m, runner, cores = self.metrics, self.engine.speculator.runner, self.engine.placement.cores
        out = {"verify": None, "draft": None}
        if runner:
            step = runner.seconds / runner.timed if runner.timed else None
            out["draft"] = fraction(runner.draft, step, runner.placement.cores or cores)
        step = m.decode_forward_seconds / m.decode_passes if m.decode_passes else None
        out["verify"] = fraction(self.engine.model, step, cores)  # last, so that the thread keeps the target's cores
        return out

    def describe(self) -> dict:
        """The sizes in use and the kernels' threads, for records of a run; branches are those that ssd prepares."""
        return {
            "max_batch": self.options.max_batch,
            "max_model_len": self.max_model_len,
            "kv_tokens": self.engine.kv.num_pages * self.engine.kv.page_size,
            "prefill_chunk": self.options.prefill_chunk,
            "prefix_caching": self.options.prefix_caching,
            "seed": self.options.seed,
            "num_threads": torch.ops.ssd.num_threads(),
            "isa": torch.ops.ssd.isa(),
            "dtype": self.engine.model.dtype,
            "branches": self.speculation.outcomes,
        }

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        params: SamplingParams | list[SamplingParams] | None = None,
        on_finish: Callable[[int, Output], None] | None = None,
    ) -> list[Output]:
        """Answers in the order of the prompts, the samples of a prompt (SamplingParams.n) one after the other.

        prompts: a text (continued as it stands), token ids, the messages of a chat ({"role", "content"}, through the
        chat template), or a list of these. params: for all, or one for each. on_finish(i, output) is called as
        answer i is done. Nothing runs before every prompt has been checked; on an exception all are cancelled. An
        answer that fails alone ends with finish_reason "error"; where all fail, ValueError is raised.
        """
        if is_one(prompts):
            prompts = [prompts]
        params = list(params) if isinstance(params, (list, tuple)) else [params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"params: got {len(params)} for {len(prompts)} prompts, wanted one for each")
        params = [self.check(p) for p in params]
        ids = [self.encode(prompt, f"prompts[{i}]") for i, prompt in enumerate(prompts)]
        samples = [self.requests.sequences(*pair) for pair in zip(ids, params, strict=True)]
        sequences = [s for group in samples for s in group]
        given = [prompt for prompt, group in zip(prompts, samples, strict=True) for _ in group]
        outputs = [None] * len(sequences)
        left = list(enumerate(sequences))
        try:
            with self._turns.turn():
                for sequence in sequences:
                    self.engine.add(sequence)
            while left:
                with self._turns.turn():
                    self._pass()
                done = [(i, s) for i, s in left if s.finish_reason]
                if done:
                    left = [(i, s) for i, s in left if not s.finish_reason]
                for i, s in done:
                    logprobs, top = logprobs_of(s)
                    text = "".join(s.pieces)
                    outputs[i] = Output(given[i], text, s.token_ids, s.finish_reason, logprobs, top, s.index, s.error)
                    if on_finish:
                        on_finish(i, outputs[i])
        finally:
            self._turns.cancel(s for _, s in left)
        if outputs and all(output.error for output in outputs):
            raise ValueError(outputs[0].error)
        return outputs

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """The answer to one prompt, piece by piece, its samples side by side. Closing the stream cancels them."""
        sequences = self.requests.sequences(self.encode(prompt), self.check(params))
        return Stream(self._turns, self.engine.add, self._pass, sequences)

    def _pass(self) -> None:
        """Run one pass, in the thread that holds the lock."""
        if not getattr(self._bound, "done", False):
            self.engine.placement.enter()
            self._bound.done = True
        self.engine.step()

    def check(self, params: SamplingParams | None) -> SamplingParams:
        """Requests.check for this model."""
        return self.requests.check(params)

    def encode(self, prompt: Prompt, name: str = "prompt") -> list[int]:
        """Requests.encode for this model."""
        return self.requests.encode(prompt, name)


def split(options: dict) -> tuple[EngineOptions, SpeculationOptions]:
    """Sort keyword arguments into the options that they are. Raises TypeError for one that belongs to neither."""
    ours = {field.name for field in fields(SpeculationOptions)}
    speculation = SpeculationOptions(**{name: value for name, value in options.items() if name in ours})
    return EngineOptions(**{name: value for name, value in options.items() if name not in ours}), speculation
