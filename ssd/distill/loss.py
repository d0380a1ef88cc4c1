"""The loss: cross-entropy against the teacher's most probable tokens."""

import torch

CHUNK = 1024  # rows whose logits are in memory at a time


class HeadLoss(torch.autograd.Function):
    """Sum over rows of weight times the cross-entropy of softmax(x head^T) against the teacher.

    Only the teacher's top tokens are known, with probabilities p_i; everything else is one event, "another token", with
    probability r. With q the draft's distribution, loss = -sum_i p_i log q_i - r log(1 - sum_i q_i): the cross-entropy
    of that coarser distribution, which leaves the draft free to spread the rest. The forward pass also computes the
    gradients. x [N, H]; head [V, H]; ids [N, k], -1 for none; p float32 [N, k]; weight float32 [N].
    """

    @staticmethod
    def forward(ctx, x, head, ids, p, weight):
        dx = torch.empty_like(x)
        dhead = torch.zeros_like(head, dtype=torch.float32)
        total = x.new_zeros((), dtype=torch.float32)
        for i in range(0, len(x), CHUNK):
            rows = slice(i, i + CHUNK)
            w = weight[i : i + CHUNK, None]
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
            rest = 1 - pi.sum(-1, keepdim=True)
            other = (1 - qi.sum(-1, keepdim=True)).clamp_min(1e-6)
            total += (w * -((pi * logq).sum(-1, keepdim=True) + rest * other.log())).sum()
            q *= w * (1 - rest / other) / norm
            # only the index of missing tokens occurs more than once, and those add nothing
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
    """(ids in the draft's vocabulary or -1, probabilities, mass) from the recorded top_ids and top_nlp [N, k].

    Tokens that the draft cannot propose are removed, and the others are scaled up to the whole; mass [N] is their
    probability before. t2d: int64 [target vocabulary], draft ids, -1 for none.
    """
    p = torch.exp(top_nlp.float() / -16)
    p = p / p.sum(-1, keepdim=True).clamp_min(1)  # rounded to sixteenths of a nat, they may add up to more than 1
    ids = t2d[top_ids]
    mass = 1 - (p * (ids < 0)).sum(-1)
    p = torch.where(ids < 0, 0, p) / mass.clamp_min(1e-3)[:, None]
    return ids, p / p.sum(-1, keepdim=True).clamp_min(1), mass
