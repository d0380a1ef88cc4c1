"""Draft checkpoints: loading, computation, and refusals."""

import json

import pytest
import tiny_checkpoint
import torch
from draft_helpers import HIDDEN, VOCAB, feature_draft_reference, write_draft
from model_helpers import one_request, relative_error, save_tiny
from safetensors.torch import load_file, save_file

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.rope import rope_tables


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Llama.load(tiny_checkpoint.write(tmp_path_factory.mktemp("tiny")), "fp32")


TOKENS = torch.randint(0, VOCAB, (21,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("layers, seed, eagle", [([0, 1, 2], 1, False), ([1], 2, False), ([0, 2], 1, True)])
def test_a_feature_draft_computes_what_its_paper_says(target, tmp_path, layers, seed, eagle):
    folder = write_draft(tmp_path / "d", layers=layers, outputs=40, seed=seed, eagle=eagle)
    draft = Draft.load(folder, target, "fp32")
    assert draft.feature_layers == tuple(layers) and draft.shift == eagle and draft.ids.shape == (40,)
    assert draft.ids.diff().min() > 0
    _, features = target.forward_features(one_request(TOKENS), target.new_kv_cache(4), tuple(layers))
    hidden = draft.fuse(features)
    want, own = feature_draft_reference(folder, target.weights.embedding, TOKENS, hidden)
    logits, got = draft.forward_features(one_request(TOKENS), draft.new_kv_cache(4), (1,), hidden)
    assert max(relative_error(logits, want)) < 1e-5 and max(relative_error(got, own)) < 1e-5


def test_features_are_the_residual_stream_after_so_many_layers(target):
    batch = one_request(TOKENS)
    logits, features = target.forward_features(batch, target.new_kv_cache(4), (0, 1, 2))
    assert torch.equal(features[:, :HIDDEN], target.weights.embedding[TOKENS])
    x, kv = target.weights.embedding[TOKENS], target.new_kv_cache(4)
    for i, (layer, k, v) in enumerate(zip(target.weights.layers, kv.k, kv.v, strict=True)):
        x = target.mlp(layer, target.attention(layer, x, batch, k, v))
        assert torch.equal(features[:, (i + 1) * HIDDEN : (i + 2) * HIDDEN], x)
    assert torch.equal(logits, target.forward(batch, target.new_kv_cache(4)))


def test_an_independent_draft_of_the_targets_weights_is_the_target(target, tmp_path):
    folder = tiny_checkpoint.write(tmp_path / "same")
    draft = Draft.load(folder, target, "fp32")
    a, b = (m.forward(one_request(TOKENS), m.new_kv_cache(4)) for m in (draft, target))
    assert torch.equal(a, b) and draft.ids is None and draft.feature_layers == ()


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_whose_vocabulary_has_less_padding(target, tmp_path, tied):
    folder = tiny_checkpoint.write(tmp_path / "d", vocab_size=VOCAB - 12)
    if not tied:
        folder = write_draft(tmp_path / "d", own_embedding=True, vocab_size=VOCAB - 12)
    draft, alone = Draft.load(folder, target, "fp32"), Llama.load(folder, "fp32")
    assert draft.config.vocab_size == VOCAB and draft.ids.tolist() == list(range(VOCAB - 12))
    a, b = (m.forward(one_request(TOKENS % (VOCAB - 12)), m.new_kv_cache(4)) for m in (draft, alone))
    assert torch.equal(a, b) and a.shape == (len(TOKENS), VOCAB - 12)
    padding = draft.forward(one_request(torch.tensor([VOCAB - 1, 3])), draft.new_kv_cache(4))  # tokens of the target
    assert padding.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Mistral"])
def test_a_draft_of_another_family(target, tmp_path, family):
    sizes = dict(vocab_size=VOCAB, max_position_embeddings=256, sliding_window=None)
    theirs = save_tiny(tmp_path, family=family, **sizes)
    draft = Draft.load(tmp_path, target, "fp32")
    got = draft.forward(one_request(TOKENS), draft.new_kv_cache(4))
    assert max(relative_error(got, theirs(TOKENS[None]).logits[0])) < 1e-5


BAD = [
    (dict(vocab_size=273), "vocabulary of 273 tokens, wanted that of the target, 272"),
    (dict(feature_layers=[3]), "wanted layers from 0 to 2"),
    (dict(feature_layers="all"), "feature_layers"),
    (dict(hidden_size=48), "wanted 32 to share the target's embedding"),
    (dict(draft_vocab_size=39), "lm_head.weight"),
    (dict(architectures=["MambaForCausalLM"]), "MambaForCausalLM"),
]


@pytest.mark.parametrize("changes, sentence", BAD)
def test_a_draft_that_does_not_fit_is_refused_in_one_sentence(target, tmp_path, changes, sentence):
    folder = write_draft(tmp_path / "d", outputs=40)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError) as e:
        Draft.load(folder, target)
    assert sentence in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("ids", [[0, 1, 1], [0, 1, VOCAB], [-1, 0, 1]])
def test_a_vocabulary_map_out_of_range_or_with_repeats_is_refused(target, tmp_path, ids):
    folder = write_draft(tmp_path / "d", outputs=3)
    tensors = load_file(folder / "model.safetensors") | {"d2t": torch.tensor(ids)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="d2t"):
        Draft.load(folder, target)


def test_a_missing_folder_or_tensor_is_named(target, tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        Draft.load(tmp_path / "nowhere", target)
    folder = write_draft(tmp_path / "d", layers=[0, 1])
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.hidden_norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match="hidden_norm.weight is missing"):
        Draft.load(folder, target)


def test_a_shorter_context_and_another_rope_scaling_are_the_drafts_own(target, tmp_path):
    scaling = {"rope_type": "linear", "factor": 2.0}
    folder = write_draft(tmp_path / "d", layers=[2], max_position_embeddings=48, rope_scaling=scaling)
    draft = Draft.load(folder, target)
    assert draft.config.max_positions == 96 == len(draft.cos) < len(target.cos)
    assert torch.equal(draft.cos, rope_tables(draft.config, 96)[0]) and not torch.equal(draft.cos, target.cos[:96])
