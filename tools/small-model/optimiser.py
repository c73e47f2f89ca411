"""Muon for matrices, Adam for the rest. Rates come in as 0-dim tensors, so a captured CUDA graph can obey a schedule."""
import math

import torch


def orthogonalise(g):
    """Newton-Schulz on a stack of matrices [n, r, c], r <= c."""
    x = g.bfloat16() if g.is_cuda else g
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        b = -4.7750 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    return x.float()


class Muon:
    def __init__(self, named, momentum=0.95, decay=0.02):
        self.items, self.momentum, self.decay = [], momentum, decay
        for name, p in named:
            if name.endswith("experts.gate_up_proj"):  # gate and up are two matrices
                view = (2 * p.shape[0], p.shape[1] // 2, p.shape[2])
            else:
                view = tuple(p.shape) if p.dim() == 3 else (1, *p.shape)
            self.items.append((p, view, torch.zeros(view, device=p.device)))
        self.groups = {}
        for k, (_, view, _) in enumerate(self.items):
            self.groups.setdefault((min(view[1:]), max(view[1:])), []).append(k)

    @torch.no_grad()
    def step(self, rate):
        g = [p.grad.view(view) for p, view, _ in self.items]
        m = [m for _, _, m in self.items]
        w = [p.data.view(view) for p, view, _ in self.items]
        torch._foreach_mul_(m, self.momentum)
        torch._foreach_add_(m, g, alpha=1 - self.momentum)
        torch._foreach_mul_(g, 1 - self.momentum)
        torch._foreach_add_(g, m, alpha=self.momentum)
        for (r, _), members in self.groups.items():
            flip = lambda x: x if x.shape[1] == r else x.transpose(1, 2)
            step = (orthogonalise(torch.cat([flip(g[k]) for k in members])) + self.decay * torch.cat([flip(w[k]) for k in members])) * rate
            parts = step.split([g[k].shape[0] for k in members])
            torch._foreach_sub_([w[k] for k in members], [part if g[k].shape[1] == r else part.transpose(1, 2) for k, part in zip(members, parts)])


class Adam:
    """Each group as one flat vector: a few large kernels instead of thousands of small ones."""

    def __init__(self, groups, betas=(0.9, 0.97), epsilon=1e-9):
        self.groups, self.betas, self.epsilon = groups, betas, epsilon  # groups: (rate factor, parameters)
        flat = [sum(p.numel() for p in ps) for _, ps in groups]
        self.first = [torch.zeros(n, device=ps[0].device) for n, (_, ps) in zip(flat, groups)]
        self.second = [torch.zeros_like(m) for m in self.first]

    @torch.no_grad()
    def step(self, rate, correction1, correction2, most=1.0):
        """correction: 1 - beta^step as tensors. The gradient's norm over all groups is cut to `most`."""
        flat = [torch.cat([p.grad.reshape(-1) for p in ps]) for _, ps in self.groups]
        norm = torch.stack([g.norm() for g in flat]).norm()
        cut = (most / (norm + 1e-6)).clamp(max=1.0)
        b1, b2 = self.betas
        for (factor, ps), g, m, v in zip(self.groups, flat, self.first, self.second):
            g = g * cut
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            step = m / correction1 / ((v / correction2).sqrt() + self.epsilon) * (rate * factor)
            torch._foreach_sub_([p.data for p in ps], [s.view_as(p) for s, p in zip(step.split([p.numel() for p in ps]), ps)])


def split(net):
    """(for Muon, groups for Adam): true matrices are orthogonalised; embedding, head, hyper-connections and vectors are not."""
    matrices, groups = [], {"embedding": (1.0, []), "head": (0.5, []), "rest": (0.5, [])}
    for name, p in net.named().items():
        if name.startswith("model.embed"):
            groups["embedding"][1].append(p)
        elif name.startswith("lm_head"):
            groups["head"][1].append(p)
        elif p.dim() >= 2 and "_hc." not in name and "hc_head" not in name and not name.endswith(("position_bias", "gate.weight", "weights_proj.weight")):
            matrices.append((name, p))
        else:
            groups["rest"][1].append(p)
    return matrices, list(groups.values())
