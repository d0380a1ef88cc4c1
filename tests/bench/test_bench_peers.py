"""The adapters of other systems: those that are installed on a tiny model, the others against fakes of their API."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, logits, write_pair
from model_helpers import relative_error

from bench import peers
from bench.peers import SYSTEMS
from ssd import LLM, SamplingParams
from ssd.model.gguf.file import GGUFFile
from ssd.model.llama import Llama

PROMPT = list(range(5, 45)) + list(range(5, 25))  # repeats itself, for prompt lookup


def module(monkeypatch, name, **contents):
    fake = ModuleType(name)
    vars(fake).update(contents)
    monkeypatch.setitem(sys.modules, name, fake)


def make(system, *args, **options):
    name, cls = SYSTEMS[system].factory.split(":")
    return getattr(__import__(name, fromlist=[cls]), cls)(*args, **options)


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
    """vLLM's engine: each step gives all tokens so far, two more at a time."""

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
    module(monkeypatch, "vllm", EngineArgs=SimpleNamespace, LLMEngine=FakeEngine, SamplingParams=SimpleNamespace)
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

    module(monkeypatch, "sglang", Engine=Engine)
    peer = make("sglang", [0], "model", "bf16", mode, **({"assistant": "small"} if mode == "assisted" else {}))
    algorithm = {"ar": None, "lookup": "NGRAM", "assisted": "STANDALONE"}[mode]
    assert peer.engine.options.get("speculative_algorithm") == algorithm
    run = peer.generate([7], 5)
    assert run["tokens"] == [7, 8, 9, 10, 11] and run["decode_tokens"] == 4


@pytest.fixture
def openvino(monkeypatch, tmp_path):
    """What the fakes of OpenVINO were asked for: path and options of the pipeline, cores, and `made`, the drafts."""
    got = {"made": []}

    class Pipeline:
        def __init__(self, path, device, enable_save_ov_model=False, **options):
            if enable_save_ov_model:
                got["made"].append(Path(path).name)
                (Path(path).parent / "openvino_model.xml").write_bytes(Path(path).read_bytes())
            got.update(path=path, device=device, options=options)

        def generate(self, inputs, config, streamer):
            assert config.ignore_eos and not config.do_sample
            last = int(inputs.ids[0, -1])
            for piece in (last, [last, last]):
                streamer.write(piece)

    genai = dict(
        LLMPipeline=Pipeline, SchedulerConfig=SimpleNamespace, GenerationConfig=SimpleNamespace, StreamerBase=object,
        StreamingStatus=SimpleNamespace(RUNNING=0), TokenizedInputs=lambda ids, mask: SimpleNamespace(ids=ids),
        draft_model=lambda path, device, **options: (path, options),
    )  # fmt: skip
    module(monkeypatch, "openvino", Tensor=lambda x: x)
    module(monkeypatch, "openvino_genai", **genai)
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: got.update(cores=cores))
    monkeypatch.setattr("ssd.model.hub.cache_folder", lambda: tmp_path / "cache")
    return got


@pytest.mark.parametrize("mode", SYSTEMS["openvino"].modes)
def test_openvino(mode, openvino, tmp_path):
    target, draft = write_pair(tmp_path / "model", Type.F16, FAMILIES["llama"])
    file = target.rename(draft / "model.F16.gguf")
    more = {"assistant": str(draft)} if mode == "assisted" else {}
    for _ in range(2):
        peer = make("openvino", [0, 1], str(tmp_path / "model"), "F16", mode, **more)
    options = openvino["options"]
    assert openvino["path"] == str(file) and not options["scheduler_config"].enable_prefix_caching
    assert options["INFERENCE_PRECISION_HINT"] == "f32" and options["INFERENCE_NUM_THREADS"] == 2
    assert openvino["cores"] == [0, 1]
    assert options.get("prompt_lookup", False) == (mode == "lookup")
    assert ("draft_model" in options) == (mode == "assisted")
    assert openvino["made"] == ["draft.gguf"] * (mode == "assisted")  # once
    if more:
        folder, of_draft = options["draft_model"]
        assert of_draft["INFERENCE_NUM_THREADS"] == 2
        assert [file.name for file in Path(folder).iterdir()] == ["openvino_model.xml"]
    run = peer.generate([4, 6], 3)
    assert run["tokens"] == [6, 6, 6] and run["decode_tokens"] == 2


@pytest.mark.parametrize(
    "precision, cores, flags, wanted",
    [
        ("bf16", [0], "avx512_bf16 amx_bf16", "AVX512_CORE_FP16"),
        ("bf16", [0, 1], "avx512_bf16 amx_bf16", None),
        ("bf16", [0], "avx512_bf16", None),
        ("F16", [0], "avx512_bf16 amx_bf16", None),
    ],
)
def test_openvino_spares_amx_where_it_would_end(precision, cores, flags, wanted, openvino, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags}\n")
    monkeypatch.setattr("bench.peers.openvino.CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "x")  # taken back at the end
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    (tmp_path / "model.F16.gguf").touch()
    make("openvino", cores, str(tmp_path), precision, "ar")
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == wanted


def byte_level(source, path):
    """A copy of the GGUF file with a tokenizer of bytes, the only kind that OpenVINO reads."""
    from bench.peers.gguf_file import copied, write

    reader = gguf.GGUFReader(source)
    tokens = [*map(chr, range(33, 127)), "ab", "<|a|>", "<|b|>", "<|c|>", "<|d|>"]
    metadata = [m for m in copied(reader) if not m[0].startswith("tokenizer.")]
    values = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": ["a b"]}
    values |= {"token_type": [1] * 95 + [3] * 4, "bos_token_id": 96, "eos_token_id": 97}
    for name, value in values.items():
        kind = gguf.GGUFValueType.UINT32 if name.endswith("_id") else gguf.GGUFValueType.get_type(value)
        element = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        metadata.append((f"tokenizer.ggml.{name}", value, kind, element))
    write(path, "F16", "llama", metadata, [(t.name, t.data.astype("f4")) for t in reader.tensors])


def test_openvino_installed_says_the_same_with_a_draft(tmp_path, monkeypatch):
    """The target's own weights as a draft: whole drafts are accepted."""
    pytest.importorskip("openvino_genai")
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)
    monkeypatch.setattr("ssd.model.hub.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("bench.peers.openvino.timeline", lambda start, arrivals, limit: [t for _, t in arrivals])
    file, folder = write_pair(tmp_path / "model", Type.F16, FAMILIES["llama"])
    byte_level(file, folder / "model.F16.gguf")
    plain = make("openvino", [0], str(folder), "F16", "ar").generate(PROMPT, 21)
    pieces = make("openvino", [0], str(folder), "F16", "assisted", assistant=str(folder)).generate(PROMPT, 21)
    assert max(map(len, pieces)) == 5 and len(pieces) <= 7
    assert sum(pieces, []) == sum(plain, [])


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s not in ("ssd",)])
def test_absent_systems_say_what_to_install(system, monkeypatch, tmp_path):
    for name in ("transformers", "llama_cpp", "ctranslate2", "openvino_genai", "vllm", "sglang"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"is not installed: pip install \S+"):
        make(system, [0], str(tmp_path), SYSTEMS[system].precisions[0], "ar")


def test_assisted_needs_a_draft(monkeypatch):
    module(monkeypatch, "vllm", EngineArgs=SimpleNamespace, LLMEngine=FakeEngine, SamplingParams=SimpleNamespace)
    with pytest.raises(ValueError, match="assisted needs --assistant with the folder of an independent draft"):
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


def test_gguf_of_finds_the_named_file_and_says_what_is_missing(tmp_path):
    from bench.peers.gguf_file import gguf_of

    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="wanted a GGUF file with Q4_1 in its name in"):
        gguf_of(folder, "Q4_1")
    (tmp_path / "other.q8_0.gguf").touch()
    assert gguf_of(folder, "Q8_0").name == "other.q8_0.gguf"
    (folder / "mine.Q8_0.gguf").touch()
    assert gguf_of(folder, "Q8_0").name == "mine.Q8_0.gguf"
    with pytest.raises(FileNotFoundError):
        gguf_of(folder, "Q4_1")  # four bits are not made of eight


def test_an_independent_draft_becomes_a_hugging_face_model(tiny_folder, tmp_path):
    from draft_helpers import write_draft
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from bench.peers.hf_draft import export

    folder = write_draft(tmp_path / "draft", depth=2)
    export(folder, tiny_folder, tmp_path / "hf")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    weights, name = model.state_dict(), "model.embed_tokens.weight"
    assert torch.equal(weights[name].float(), load_file(tiny_folder / "model.safetensors")[name].bfloat16().float())
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(weights["lm_head.weight"].float(), head.bfloat16().float())
    with pytest.raises(ValueError, match="got a feature draft"):
        export(write_draft(tmp_path / "features", layers=[0, 1, 2]), tiny_folder, tmp_path / "no")
    folder = write_draft(tmp_path / "trimmed", depth=2, outputs=60)
    export(folder, tiny_folder, tmp_path / "whole")
    tensors, whole = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "whole"))
    head = whole.pop("lm_head.weight")
    assert torch.equal(head[tensors["d2t"]], tensors["lm_head.weight"].bfloat16())
    assert int(head.any(1).sum()) == 60 and len(head) == len(whole[name]) and "d2t" not in whole


@pytest.mark.parametrize("family", ["llama", "llama, biases", "qwen3, tied"])
@pytest.mark.parametrize("precision, near", [("F16", 0), ("Q8_0", 1e-3)])
def test_a_folder_as_a_gguf_file_gives_the_same_logits(precision, near, family, tmp_path):
    from bench.peers.gguf_draft import convert

    target, _ = write_pair(tmp_path / "target", Type.F16, {"num_hidden_layers": 2, **FAMILIES["qwen2"]})
    _, folder = write_pair(tmp_path / "draft", getattr(Type, precision), FAMILIES[family])
    convert(folder, target, precision, tmp_path / "draft.gguf")
    model, wanted = Llama.load(tmp_path / "draft.gguf", "fp32"), Llama.load(folder, "fp32")
    assert model.config == wanted.config
    assert max(relative_error(logits(model), logits(wanted))) <= near
    meta = [GGUFFile(file).meta for file in (tmp_path / "draft.gguf", target)]
    one, other = ({k: v for k, v in m.items() if k.startswith("tokenizer.")} for m in meta)
    assert one == other and one["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"vocab_size": 98}, "got a vocabulary of 98 tokens, wanted the target's 99"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "got RoPE of type linear, wanted the default"),
        ({"architectures": ["MistralForCausalLM"]}, "got MistralForCausalLM, wanted LlamaForCausalLM or"),
    ],
)
def test_a_draft_that_a_gguf_file_cannot_hold(changes, said, tmp_path):
    from bench.peers.gguf_draft import convert

    target, folder = write_pair(tmp_path, Type.F16, FAMILIES["llama"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=said):
        convert(folder, target, "F16", tmp_path / "draft.gguf")
