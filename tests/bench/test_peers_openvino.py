"""The adapter of OpenVINO: against a fake of its API, and on a tiny model if OpenVINO is installed."""

import os
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, write_pair
from peer_helpers import PROMPT, fake_module, make

from bench.peers import SYSTEMS


@pytest.fixture
def openvino(monkeypatch, tmp_path):
    """Fakes of OpenVINO; the dictionary has the path and options of the pipeline, the cores, and `made`, the drafts."""
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
    fake_module(monkeypatch, "openvino", Tensor=lambda x: x)
    fake_module(monkeypatch, "openvino_genai", **genai)
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
    assert openvino["made"] == ["draft.gguf"] * (mode == "assisted")  # made only once
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
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "x")  # so that monkeypatch restores the variable at the end
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    (tmp_path / "model.F16.gguf").touch()
    make("openvino", cores, str(tmp_path), precision, "ar")
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == wanted


def byte_level(source, path):
    """Copies a GGUF file with a tokenizer of bytes, the only kind that OpenVINO reads."""
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
    """With the target's own weights as the draft, whole speculations are accepted."""
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
