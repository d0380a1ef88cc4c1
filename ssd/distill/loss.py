"""Distillation on the teacher's most probable tokens."""

import torch

CHUNK = 1024  # rows whose logits are in memory at a time


class HeadLoss(torch.autograd.Function):
    """Sum over rows of weight * cross-entropy of softmax(x head^T) against the teacher, its gradients computed at once.

    The teacher is known by its top tokens: what they leave is one event, "another token". With q the draft and r the
    rest, loss = -sum_i p_i log q_i - r log(1 - sum_i q_i): the cross-entropy of that coarser distribution, which
    leaves it to the draft how the rest is spread. x [N, H]; head [V, H]; ids [N, k], -1 where there is none; p
    float32 [N, k]; weight float32 [N].
    """

    @staticmethod
    def forward(ctx, x, head, ids, p, weight):
        dx, dhead = torch.empty_like(x), torch.zeros_like(head, dtype=torch.float32)
        total = x.new_zeros((), dtype=torch.float32)
        for i in range(0, len(x), CHUNK):
            rows, w = slice(i, i + CHUNK), weight[i : i + CHUNK, None]
            there = ids[rows] >= 0
            index = ids[rows].clamp_min(0)
            pi = p[rows] * there
            q = (x[rows] @ head.T).float()
            top = q.amax(-1, keepdim=True)
            q.sub_(top)
            logq = q.gather(1, index)
            q.exp_()
            norm = q.sum(-1, keepdim=True)
            logq -= norm.log()
            qi = logq.exp() * there
            rest, other = 1 - pi.sum(-1, keepdim=True), (1 - qi.sum(-1, keepdim=True)).clamp_min(1e-6)
            total += (w * -((pi * logq).sum(-1, keepdim=True) + rest * other.log())).sum()
            q *= w * (1 - rest / other) / norm
            # no index comes twice but that of missing ones, which add nothing
            q.scatter_add_(1, index, torch.where(there, w * (qi - pi) - q.gather(1, index), 0))
            q = q.to(x.dtype)
            dx[rows] = q @ head
            dhead += q.T @ x[rows]
        ctx.save_for_backward(dx, dhead.to(head.dtype))
        return total

    @staticmethod
    def backward(ctx, grad):
        dx, dhead = ctx.saved_tensors
        return dx * grad, dhead * grad, None, None, None


def teacher(top_ids: torch.Tensor, top_nlp: torch.Tensor, t2d: torch.Tensor):
    """(ids in the draft's vocabulary or -1, probabilities, mass) from recorded top_ids [N, k] and nlp [N, k].

    What the draft cannot say is taken out and the others are scaled up to stand for the whole; mass [N] is what they
    were before. t2d int64 [target vocabulary], -1 for none.
    """
    p = torch.exp(top_nlp.float() / -16)
    p = p / p.sum(-1, keepdim=True).clamp_min(1)  # sixteenths of a nat may add up to more
    ids = t2d[top_ids]
    mass = 1 - (p * (ids < 0)).sum(-1)
    p = torch.where(ids < 0, 0, p) / mass.clamp_min(1e-3)[:, None]
    return ids, p / p.sum(-1, keepdim=True).clamp_min(1), mass
