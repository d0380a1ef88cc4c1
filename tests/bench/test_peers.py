"""The adapters of other systems: installed ones on a tiny model, the others against fakes of their API."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from peer_helpers import PROMPT, fake_module, make

from bench import peers
from bench.peers import SYSTEMS
from ssd import LLM, SamplingParams


@pytest.fixture(scope="module")
def plain(tiny_folder):
    llm = LLM(str(tiny_folder), "fp32", threads=1)
    return llm.generate([PROMPT], SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))[0].token_ids


@pytest.mark.parametrize("mode", SYSTEMS["transformers"].modes)
def test_transformers_says_the_same_in_every_mode(mode, tiny_folder, plain):
    options = {"assistant": str(tiny_folder)} if mode == "assisted" else {}
    threads = torch.get_num_threads()
    try:
        peer = make("transformers", [0], str(tiny_folder), "fp32", mode, **options)
        run = peer.generate(PROMPT, 20)
    finally:
        torch.set_num_threads(threads)
    assert run["tokens"] == plain and 0 < run["decode_tokens"] < 20 and run["decode_seconds"] > 0


def test_ctranslate2_says_the_same(tiny_folder, plain, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("ssd.model.hub.cache_folder", lambda: tmp_path)
    run = make("ctranslate2", [0], str(tiny_folder), "fp32", "ar").generate(PROMPT, 20)
    assert run["tokens"] == plain and run["decode_tokens"] == 19
    assert [p.suffix for p in (tmp_path / "peers").iterdir()] == [".ctranslate2-fp32"]


def test_own_modes_take_k(tiny_folder, plain):
    peer = make("ssd", [0], str(tiny_folder), "fp32", "sd:3", draft="ngram")
    run = peer.generate(PROMPT, 20)
    assert run["tokens"] == plain and peer.llm.speculation.k == 3
    assert 1 <= run["counts"]["decode_tokens"] / run["counts"]["rounds"] <= 4


class FakeEngine:
    """A stand-in for vLLM's engine, whose steps return all tokens so far, two more each time."""

    @classmethod
    def from_engine_args(cls, args):
        engine = cls()
        engine.args, engine.left = args, 0
        return engine

    def add_request(self, name, prompt, params):
        self.prompt, self.params, self.left, self.said = prompt["prompt_token_ids"], params, params.max_tokens, []

    def has_unfinished_requests(self):
        return self.left > len(self.said)

    def step(self):
        self.said += [self.prompt[-1]] * 2
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(self.said))])]


@pytest.mark.parametrize("mode", SYSTEMS["vllm"].modes)
def test_vllm(mode, monkeypatch):
    fake_module(monkeypatch, "vllm", EngineArgs=SimpleNamespace, LLMEngine=FakeEngine, SamplingParams=SimpleNamespace)
    peer = make("vllm", [0], "model", "bf16", mode, **({"assistant": "small"} if mode == "assisted" else {}))
    args = peer.engine.args
    assert (args.model, args.dtype, args.enable_prefix_caching) == ("model", "bfloat16", False)
    method = (args.speculative_config or {}).get("method")
    assert method == {"ar": None, "lookup": "ngram", "assisted": "draft_model"}[mode]
    for _ in range(2):
        run = peer.generate([1, 2], 5)
        assert run["tokens"] == [2] * 5 and run["decode_tokens"] == 3
        assert peer.engine.params.ignore_eos and peer.engine.params.temperature == 0


@pytest.mark.parametrize("mode", SYSTEMS["sglang"].modes)
@pytest.mark.parametrize("cumulative", [True, False])
def test_sglang(mode, cumulative, monkeypatch):
    class Engine:
        def __init__(self, **options):
            self.options = options

        def generate(self, input_ids, sampling_params, stream):
            assert stream and sampling_params["ignore_eos"] and sampling_params["temperature"] == 0
            for count in (1, 3, 3, 5):
                said = [input_ids[-1] + i for i in range(count)]
                yield {"output_ids": said if cumulative else said[-2:], "meta_info": {"completion_tokens": count}}

    fake_module(monkeypatch, "sglang", Engine=Engine)
    peer = make("sglang", [0], "model", "bf16", mode, **({"assistant": "small"} if mode == "assisted" else {}))
    algorithm = {"ar": None, "lookup": "NGRAM", "assisted": "STANDALONE"}[mode]
    assert peer.engine.options.get("speculative_algorithm") == algorithm
    run = peer.generate([7], 5)
    assert run["tokens"] == [7, 8, 9, 10, 11] and run["decode_tokens"] == 4


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s not in ("ssd",)])
def test_absent_systems_say_what_to_install(system, monkeypatch, tmp_path):
    for name in ("transformers", "llama_cpp", "ctranslate2", "openvino_genai", "vllm", "sglang"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"is not installed: pip install \S+"):
        make(system, [0], str(tmp_path), SYSTEMS[system].precisions[0], "ar")


def test_assisted_needs_a_draft(monkeypatch):
    fake_module(monkeypatch, "vllm", EngineArgs=SimpleNamespace, LLMEngine=FakeEngine, SamplingParams=SimpleNamespace)
    with pytest.raises(ValueError, match="mode assisted needs --assistant with the folder of a draft"):
        make("vllm", [0], "model", "bf16", "assisted")


def test_converted_files_are_made_once_and_anew_when_the_model_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("ssd.model.hub.cache_folder", lambda: tmp_path / "cache")
    model, calls = tmp_path / "m.Q4_1.gguf", []
    model.write_text("a")

    def write(path):
        calls.append(path)
        path.write_text("b")

    first = peers.converted(model, "F16.gguf", write)
    assert peers.converted(model, "F16.gguf", write) == first and len(calls) == 1 and first.read_text() == "b"
    os.utime(model, ns=(1, 1))
    assert peers.converted(model, "F16.gguf", write) != first and len(calls) == 2
