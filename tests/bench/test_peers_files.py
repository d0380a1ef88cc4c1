"""Targets and drafts in the file formats that other systems read: GGUF, and Hugging Face folders."""

import json

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, logits, write_pair
from model_helpers import relative_error

from bench.peers import gguf_file
from ssd.model.gguf.file import GGUFFile
from ssd.model.llama import Llama


@pytest.mark.parametrize("precision,bound", [("Q8_0", 0.005), ("F16", 0.0005)])
def test_gguf_file_in_another_precision(tmp_path, precision, bound):
    source = tmp_path / "tiny.Q4_1.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "é"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    weight = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    four_bits = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w", four_bits, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("norm", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    path = gguf_file.convert(source, precision)
    assert path.name == f"tiny.{precision}.gguf"
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(path)
    assert set(before.fields) == set(after.fields)
    assert after.fields["tokenizer.ggml.tokens"].contents() == ["a", "é"]
    w, norm = after.tensors
    assert w.tensor_type.name == precision and norm.tensor_type.name == "F32"
    exact = gguf.quants.dequantize(four_bits, gguf.GGMLQuantizationType.Q4_1)
    assert 0 < np.abs(gguf.quants.dequantize(w.data, w.tensor_type) - exact).max() < bound * np.abs(exact).max()
    with pytest.raises(ValueError, match="precision: got 'Q2_K'"):
        gguf_file.convert(source, "Q2_K")


def test_gguf_of_finds_the_named_file_and_says_what_is_missing(tmp_path):
    from bench.peers.gguf_file import gguf_of

    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="nor its parent has a GGUF file with Q4_1 in its name"):
        gguf_of(folder, "Q4_1")
    (tmp_path / "other.q8_0.gguf").touch()
    assert gguf_of(folder, "Q8_0").name == "other.q8_0.gguf"
    (folder / "mine.Q8_0.gguf").touch()
    assert gguf_of(folder, "Q8_0").name == "mine.Q8_0.gguf"
    with pytest.raises(FileNotFoundError):
        gguf_of(folder, "Q4_1")  # a file of eight bits is not converted to four


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
