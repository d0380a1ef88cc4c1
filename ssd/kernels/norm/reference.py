import torch


def rms_norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def add_rms_norm(x, residual, weight, eps):
    total = x.float() + residual.float()
    return rms_norm(total, weight, eps), total
