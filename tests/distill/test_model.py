"""The draft in torch against what the runtime will compute, and its loss against autograd."""

import pytest
import tiny_checkpoint
import torch
from model_helpers import one_request, relative_error, save_tiny

from ssd.distill import config as draft_config
from ssd.distill import model as torch_draft
from ssd.distill.export import load_draft, save_draft
from ssd.distill.loss import HeadLoss, teacher
from ssd.distill.teacher import Target
from ssd.model.config import LlamaConfig
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.rope import rope_tables


def tiny_draft(folder, features=(2,), layers=(1,), hidden=None, vocab=272, dtype=torch.float32):
    c = LlamaConfig.from_folder(folder)
    config = draft_config.plan(folder, list(layers), features, hidden, vocab)
    d2t = torch.arange(0, c.vocab_size, max(1, c.vocab_size // vocab))[:vocab]
    weights, embedding = draft_config.first_weights(config, folder, list(layers), d2t, 0)
    return torch_draft.Draft(config, weights, d2t, embedding, *rope_tables(c, 64), dtype)


@pytest.mark.parametrize("layers", [(1,), (0, 1)])
def test_own_steps_are_those_of_decoding(tmp_path, layers):
    """Step s of a row below root r sees rows up to r with the target's features, then the chain of the draft's own."""
    draft = tiny_draft(tiny_checkpoint.write(tmp_path), layers=layers)
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 272, (2, 12), generator=random)
    features = torch.randn(2, 12, 32, generator=random)
    with torch.no_grad():
        got = draft(ids, features, 4)
        late = draft(ids, features, 4, skip=3)
        for s in range(1, 4):
            torch.testing.assert_close(late[s][:, s - 1 :], got[s][:, 3 + s - 1 :], rtol=1e-4, atol=1e-4)
        for root in (0, 4, 8):
            fed = features.clone()
            for s in range(4):
                once = draft(ids, fed, 1)[0]
                torch.testing.assert_close(got[s][:, root + s], once[:, root + s], rtol=1e-4, atol=1e-4)
                fed[:, root + s] = once[:, root + s]


FAMILIES = {"Qwen2": {}, "Qwen3": dict(head_dim=32), "Mistral": {}, "Llama": dict(attention_bias=True, mlp_bias=True)}


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_targets_and_drafts_of_other_families(tmp_path, family):
    theirs = save_tiny(tmp_path / "target", family=family, vocab_size=272, **FAMILIES[family])
    target, ids = Target(tmp_path / "target", torch.float32, features=(0, 2)), torch.arange(40).view(2, 20)
    x, features = target.forward(ids, torch.arange(20).expand(2, 20), None)
    wanted = theirs(ids).logits
    assert max(relative_error(target.logits(x), wanted)) < 1e-5
    plain = tiny_draft(tmp_path / "target", (), (0, 1))
    if family != "Llama":  # drafts have no biases of o or of the products after attention
        assert max(relative_error(plain.logits(plain(ids, None)[0]), wanted)) < 1e-5
    draft = tiny_draft(tmp_path / "target", (0, 2))
    for name, made in (("plain", plain), ("fed", draft)):
        save_draft(tmp_path / name, made, torch.float32)
        again = load_draft(tmp_path / name, target.embedding, torch.float32)
        used = Draft.load(tmp_path / name, Llama.load(tmp_path / "target", "fp32"), "fp32")
        stream = made(ids[:1], features[:1].float() if name == "fed" else None)[0]
        assert all(torch.equal(w, made.weights()[n]) for n, w in again.weights().items())
        shifted = torch.cat([torch.zeros(1, 2 * 64), features[0, :-1].float()])
        hidden = used.fuse(shifted) if name == "fed" else None
        got, _ = used.forward_features(one_request(ids[0]), used.new_kv_cache(2), (), hidden)
        assert max(relative_error(got, made.logits(stream)[0])) < 1e-4


def test_a_draft_of_all_layers_is_the_target(tmp_path):
    target = Target(tiny_checkpoint.write(tmp_path), torch.float32)
    draft = tiny_draft(tmp_path, (), (0, 1))
    ids = torch.arange(40).view(2, 20)
    x, _ = target.forward(ids, torch.arange(20).expand(2, 20), None)
    torch.testing.assert_close(draft.logits(draft(ids, None)[0]), target.logits(x), rtol=1e-4, atol=1e-4)


def test_a_draft_as_wide_as_the_target_by_svd_is_the_target(tmp_path, monkeypatch):
    """The projection on all singular vectors is a rotation, which changes nothing."""
    target = Target(tiny_checkpoint.write(tmp_path), torch.float32)
    wide = LlamaConfig.from_folder(tmp_path).hidden_size
    config = draft_config.plan(tmp_path, [0, 1], (), wide, None)
    monkeypatch.setattr(draft_config, "narrower", lambda c, t: True)
    weights, embedding = draft_config.first_weights(config, tmp_path, [0, 1], torch.arange(272), 0)
    draft = torch_draft.Draft(config, weights, torch.arange(272), embedding, target.cos, target.sin, torch.float32)
    ids = torch.arange(40).view(2, 20)
    x, _ = target.forward(ids, torch.arange(20).expand(2, 20), None)
    torch.testing.assert_close(draft.logits(draft(ids, None)[0]), target.logits(x), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(embedding, target.embedding)


def test_loss_and_its_gradients():
    random = torch.Generator().manual_seed(2)
    x, head = torch.randn(7, 16, generator=random), torch.randn(50, 16, generator=random)
    ids = torch.stack([torch.randperm(50, generator=random)[:8] for _ in range(7)])
    ids[0, 3:], ids[1] = -1, -1
    p = torch.rand(7, 8, generator=random)
    p = torch.where(ids < 0, 0, p) / p.sum(-1, keepdim=True) * 0.9
    weight = torch.rand(7, generator=random)

    def plain(x, head):
        logq = (x @ head.T).log_softmax(-1)
        total = 0
        for n in range(7):
            there = ids[n][ids[n] >= 0]
            rest = 1 - p[n].sum()
            other = torch.ones(50, dtype=torch.bool).index_fill_(0, there, False)
            total = total - weight[n] * (
                (p[n][ids[n] >= 0] * logq[n, there]).sum() + rest * logq[n, other].exp().sum().log()
            )
        return total

    a, b = (t.clone().requires_grad_() for t in (x, head))
    c, d = (t.clone().requires_grad_() for t in (x, head))
    got, wanted = HeadLoss.apply(a, b, ids, p, weight), plain(c, d)
    (3 * got).backward()
    (3 * wanted).backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(a.grad, c.grad)
    torch.testing.assert_close(b.grad, d.grad)


def test_teacher_outside_the_draft_vocabulary():
    t2d = torch.tensor([-1, 0, 1, -1])
    ids, p, mass = teacher(torch.tensor([[0, 1, 2]]), torch.tensor([[11, 22, 33]], dtype=torch.uint8), t2d)
    raw = torch.exp(torch.tensor([11.0, 22, 33]) / -16)
    assert ids.tolist() == [[-1, 0, 1]]
    torch.testing.assert_close(mass, 1 - raw[:1])
    torch.testing.assert_close(p, torch.tensor([[0, raw[1] / (1 - raw[0]), raw[2] / (1 - raw[0])]]))
