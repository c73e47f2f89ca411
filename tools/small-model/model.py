"""DeepSeek-V4 for training at small sizes: transformers' mathematics and parameter names, written for speed.

What differs from a plain implementation, and why:
 - one flat token axis and block-local window attention instead of an S x S mask; all heads share one key, so scores are one batched product
 - every expert is computed for every token (with 8 experts that is cheaper than sorting tokens), weight 0 where it was not chosen
 - Sinkhorn is one Triton kernel with its own backward that keeps only the denominators
 - the indexer has its own loss: the choice of rows passes no gradient, so its softmax is pulled towards the attention's mass on compressed rows
 - FP8 and FP4 round trips are simulated straight-through and can be blended in by a tensor, so no graph is compiled twice
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from config import Config

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU: the plain Sinkhorn below
    triton = None

BLOCK = 128  # the window's size and the unit of document alignment


def inverse_frequencies(c):
    """(ratio-0 layers, compressed layers with YaRN); float64 until the last moment, as the engine does."""
    i = torch.arange(0, c.rotary, 2, dtype=torch.float64)
    base = 160000.0 ** (-i / c.rotary)

    def turns(beta):
        return c.rotary * math.log(65536 / (beta * 2 * math.pi)) / (2 * math.log(160000))

    low, high = max(math.floor(turns(32)), 0), min(math.ceil(turns(1)), c.rotary - 1)
    ramp = ((torch.arange(c.rotary // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return (10000.0 ** (-i / c.rotary)).float(), (base * (1 - ramp) + base / 16 * ramp).float()


# ---- Sinkhorn -----------------------------------------------------------------------------------------

def sinkhorn_plain(logits, rounds, epsilon):
    c = torch.softmax(logits, -1) + epsilon
    c = c / (c.sum(-2, keepdim=True) + epsilon)
    for _ in range(rounds - 1):
        c = c / (c.sum(-1, keepdim=True) + epsilon)
        c = c / (c.sum(-2, keepdim=True) + epsilon)
    return c


if triton is not None:
    @triton.jit
    def _sinkhorn_forward(x_ptr, y_ptr, s_ptr, T, rounds, eps, B: tl.constexpr):
        t = tl.program_id(0) * B + tl.arange(0, B)
        j = tl.arange(0, 4)
        inside = (t < T)[:, None, None] & (j < 4)[None, :, None] & (j < 4)[None, None, :]
        at = t[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        x = tl.exp(x - tl.max(x, 2)[:, :, None])
        x = x / tl.sum(x, 2)[:, :, None] + eps
        sat = t[:, None] * 4 + j[None, :]
        inside2 = (t < T)[:, None] & (j < 4)[None, :]
        s = tl.sum(x, 1) + eps
        tl.store(s_ptr + sat, s, mask=inside2)
        x = x / s[:, None, :]
        for k in range(1, rounds):
            s = tl.sum(x, 2) + eps
            tl.store(s_ptr + (2 * k - 1) * T * 4 + sat, s, mask=inside2)
            x = x / s[:, :, None]
            s = tl.sum(x, 1) + eps
            tl.store(s_ptr + (2 * k) * T * 4 + sat, s, mask=inside2)
            x = x / s[:, None, :]
        tl.store(y_ptr + at, x, mask=inside)

    @triton.jit
    def _sinkhorn_backward(y_ptr, s_ptr, g_ptr, gx_ptr, T, rounds, eps, B: tl.constexpr):
        t = tl.program_id(0) * B + tl.arange(0, B)
        j = tl.arange(0, 4)
        inside = (t < T)[:, None, None] & (j < 4)[None, :, None] & (j < 4)[None, None, :]
        at = t[:, None, None] * 16 + j[None, :, None] * 4 + j[None, None, :]
        sat = t[:, None] * 4 + j[None, :]
        inside2 = (t < T)[:, None] & (j < 4)[None, :]
        y = tl.load(y_ptr + at, mask=inside, other=0.0)
        g = tl.load(g_ptr + at, mask=inside, other=0.0)
        for back in range(1, rounds):
            k = rounds - back
            s = tl.load(s_ptr + (2 * k) * T * 4 + sat, mask=inside2, other=1.0)
            g = (g - tl.sum(g * y, 1)[:, None, :]) / s[:, None, :]
            y = y * s[:, None, :]
            s = tl.load(s_ptr + (2 * k - 1) * T * 4 + sat, mask=inside2, other=1.0)
            g = (g - tl.sum(g * y, 2)[:, :, None]) / s[:, :, None]
            y = y * s[:, :, None]
        s = tl.load(s_ptr + sat, mask=inside2, other=1.0)
        g = (g - tl.sum(g * y, 1)[:, None, :]) / s[:, None, :]
        y = y * s[:, None, :] - eps
        g = y * (g - tl.sum(g * y, 2)[:, :, None])
        tl.store(gx_ptr + at, g, mask=inside)

    @torch.library.custom_op("ds4small::sinkhorn", mutates_args=())
    def _sinkhorn(x: torch.Tensor, rounds: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        T = x.numel() // 16
        y = torch.empty_like(x)
        s = torch.empty(2 * rounds - 1, T, 4, device=x.device, dtype=torch.float32)
        _sinkhorn_forward[(triton.cdiv(T, 128),)](x, y, s, T, rounds, eps, B=128, num_warps=4)
        return y, s

    @_sinkhorn.register_fake
    def _(x, rounds, eps):
        return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(2 * rounds - 1, x.numel() // 16, 4)

    @torch.library.custom_op("ds4small::sinkhorn_backward", mutates_args=())
    def _sinkhorn_grad(y: torch.Tensor, s: torch.Tensor, g: torch.Tensor, rounds: int, eps: float) -> torch.Tensor:
        g = g.contiguous()
        gx = torch.empty_like(g)
        T = y.numel() // 16
        _sinkhorn_backward[(triton.cdiv(T, 128),)](y, s, g, gx, T, rounds, eps, B=128, num_warps=4)
        return gx

    @_sinkhorn_grad.register_fake
    def _(y, s, g, rounds, eps):
        return torch.empty_like(g, memory_format=torch.contiguous_format)

    def _keep(ctx, inputs, output):
        ctx.save_for_backward(*output)
        ctx.settings = inputs[1:]

    def _back(ctx, gy, gs):
        y, s = ctx.saved_tensors
        return torch.ops.ds4small.sinkhorn_backward(y, s, gy, *ctx.settings), None, None

    _sinkhorn.register_autograd(_back, setup_context=_keep)


def sinkhorn(logits, rounds, epsilon):
    if triton is not None and logits.is_cuda:
        return torch.ops.ds4small.sinkhorn(logits, rounds, epsilon)[0]
    return sinkhorn_plain(logits, rounds, epsilon)


# ---- pieces -------------------------------------------------------------------------------------------

def rms(x, weight=None, epsilon=1e-6):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (y * weight if weight is not None else y).to(x.dtype)


def linear(x, weight, dtype):
    return F.linear(x.to(dtype), weight.to(dtype))


def rotate(x, cos, sin):
    """Interleaved RoPE on the last 2 * cos.shape[-1] channels."""
    width = 2 * cos.shape[-1]
    still, turning = x[..., :-width], x[..., -width:].float()
    even, odd = turning[..., 0::2], turning[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
    return torch.cat([still, turned.to(x.dtype)], -1)


def _power_of_two_above(x):
    """2^ceil(log2 x) for positive normal float32, from the exponent bits: a logarithm can be one off next to a power of two."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def e4m3(a):
    """Nearest E4M3 value, ties to even; |a| <= 448."""
    magnitude = a.abs()
    bits = magnitude.contiguous().view(torch.int32)
    exponent = ((bits >> 23) - 127).clamp(min=-6)
    step = ((exponent - 3 + 127) << 23).view(torch.float32)
    return torch.round(magnitude / step) * step * a.sign()


def e2m1(a):
    magnitude = a.abs().clamp(max=6)
    near = torch.where(magnitude < 2, torch.round(magnitude * 2) / 2,
                       torch.where(magnitude < 4, torch.round(magnitude), torch.round(magnitude / 2) * 2))
    return near * a.sign()


def fp8_round_trip(x, rotary, amount):
    """Of the unrotated part, in groups of 64. `amount` (a 0-dim tensor) is 0 for off, 1 for on."""
    plain = x[..., :-rotary].float()
    group = plain.detach().unflatten(-1, (-1, 64))
    scale = _power_of_two_above(group.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)
    rounded = (e4m3((group / scale).clamp(-448, 448)) * scale).flatten(-2)
    return torch.cat([(plain + amount * (rounded - plain.detach())).to(x.dtype), x[..., -rotary:]], -1)


def fp4_round_trip(x, hadamard, amount):
    """Hadamard rotation (always: it changes no product), then E2M1 in groups of 32."""
    turned = x.float() @ hadamard
    group = turned.detach().unflatten(-1, (-1, 32))
    scale = _power_of_two_above(group.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0 ** -126) / 6)
    rounded = (e2m1(group / scale) * scale).flatten(-2)
    return (turned + amount * (rounded - turned.detach())).to(x.dtype)


def hadamard_matrix(n):
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / math.sqrt(n)


def compress(x, B, S, ratio, width, kv, gate, bias, norm, cos, sin, first, dtype, epsilon):
    """x [T, D] -> rows [B, S // ratio, width]. `first` [B, S // ratio]: the row opens a document, so there is no previous window."""
    k = linear(x, kv, dtype).view(B, S // ratio, ratio, -1)
    g = linear(x, gate, dtype).float().view(B, S // ratio, ratio, -1) + bias
    if ratio == 4:
        before_k = F.pad(k[:, :-1, :, :width], (0, 0, 0, 0, 1, 0))
        before_g = F.pad(g[:, :-1, :, :width], (0, 0, 0, 0, 1, 0))
        before_g = before_g.masked_fill(first[:, :, None, None], float("-inf"))
        k = torch.cat([before_k, k[..., width:]], 2)
        g = torch.cat([before_g, g[..., width:]], 2)
    row = rms((k.float() * g.softmax(2)).sum(2), norm, epsilon).to(dtype)
    return rotate(row, cos, sin)


def hc_pre(X, fn, base, scale, c):
    """X [T, streams, D] float32 -> (collapsed [T, D], post [T, streams], mixing [T, streams, streams])."""
    T, n = X.shape[0], c.streams
    flat = X.reshape(T, -1)
    m = F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + c.epsilon)
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + c.epsilon
    post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
    mixing = sinkhorn((m[:, 2 * n:] * scale[2] + base[2 * n:]).view(T, n, n), c.sinkhorn, c.epsilon)
    return (pre.unsqueeze(-1) * X).sum(1), post, mixing


def hc_post(X, y, post, mixing):
    mixed = sum(mixing[:, a, :, None] * X[:, a, None, :] for a in range(X.shape[1]))
    return post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed


def attention(x, p, c, ratio, B, S, cos, sin, window, low, rows_at, first, hadamard, source, dtype, rounding, sparse, train, guide):
    """x [T, D] (normed). window [T/128, 128, 256]; low [B, S]: first compressed row of each token's document.

    Returns (output, indexer loss, guide loss). No running maximum is needed in the softmax: |score| is at most
    sqrt(head width) times the largest norm weight, far below float32's exponent range.
    """
    T, H, d = x.shape[0], c.heads, c.head_width
    qr = rms(linear(x, p["q_a_proj.weight"], dtype), p["q_a_norm.weight"], c.epsilon)
    q = rms(linear(qr, p["q_b_proj.weight"], dtype).view(T, H, d), None, c.epsilon)
    q = rotate(q, cos[:, None], sin[:, None]) * d ** -0.5
    kv = rotate(rms(linear(x, p["kv_proj.weight"], dtype), p["kv_norm.weight"], c.epsilon), cos, sin)
    kv = fp8_round_trip(kv, c.rotary, rounding)
    own = kv.view(T // BLOCK, BLOCK, d)
    near = torch.cat([F.pad(own[:-1], (0, 0, 0, 0, 1, 0)), own], 1)
    z = torch.bmm(q.view(T // BLOCK, BLOCK * H, d), near.transpose(1, 2)).view(T // BLOCK, BLOCK, H, 2 * BLOCK)
    e = torch.where(window[:, :, None, :], z.float().exp(), 0.0)
    below = e.sum(-1).view(T, H) + p["sinks"].float().exp()
    above = torch.bmm(e.to(dtype).view(T // BLOCK, BLOCK * H, 2 * BLOCK), near).view(T, H, d).float()
    indexer_loss = guide_loss = None
    if ratio:
        C = S // ratio
        rows = compress(x, B, S, ratio, d, p["compressor.kv_proj.weight"], p["compressor.gate_proj.weight"],
                        p["compressor.position_bias"], p["compressor.kv_norm.weight"], *rows_at, first, dtype, c.epsilon)
        rows = fp8_round_trip(rows, c.rotary, rounding)
        z = torch.bmm(q.view(B, S * H, d), rows.transpose(1, 2)).view(B, S, H, C)
        row = torch.arange(C, device=x.device)[None, None, :]
        seen = (row < (torch.arange(S, device=x.device)[None, :, None] + 1) // ratio) & (row >= low[:, :, None])
        e = torch.where(seen[:, :, None, :], z.float().exp(), 0.0)
        if ratio == 4:
            fixed_x, fixed_q, P = x.detach(), qr.detach(), "compressor.indexer."
            index_rows = compress(fixed_x, B, S, ratio, c.indexer_width, p[P + "kv_proj.weight"], p[P + "gate_proj.weight"],
                                  p[P + "position_bias"], p[P + "kv_norm.weight"], *rows_at, first, dtype, c.epsilon)
            index_q = rotate(linear(fixed_q, p[P + "q_b_proj.weight"], dtype).view(T, c.indexer_heads, c.indexer_width), cos[:, None], sin[:, None])
            index_rows, index_q = fp4_round_trip(index_rows, hadamard, rounding), fp4_round_trip(index_q, hadamard, rounding)
            g = linear(fixed_x, p[P + "scorer.weights_proj.weight"], dtype).float() * (c.indexer_heads * c.indexer_width) ** -0.5
            score = F.relu(torch.bmm(index_q.view(B, S * c.indexer_heads, c.indexer_width), index_rows.transpose(1, 2)).view(B, S, c.indexer_heads, C).float())
            score = (score * g.view(B, S, c.indexer_heads, 1)).sum(2)
            if train:
                total = below.view(B, S, H, 1) + e.sum(-1, keepdim=True)
                share = (e.detach() / total.detach()).sum(2)
                mass = share.sum(-1, keepdim=True)
                share = share / (mass + 1e-9)
                log_q = torch.where(seen, torch.log_softmax(score.masked_fill(~seen, -1e30), -1), 0.0)
                divergence = (torch.xlogy(share, share) - share * log_q).sum(-1)
                indexer_loss = (divergence * mass[..., 0]).sum() / (mass.sum() + 1e-9)
                if guide:
                    wanted = source >= 0
                    at = (source.clamp(min=0) // ratio).view(B, S, 1, 1).expand(B, S, H, 1)
                    hit = e.gather(-1, at) + e.gather(-1, (at + 1).clamp(max=C - 1))
                    hit = (hit / total).squeeze(-1).mean(-1)
                    guide_loss = -(torch.log(hit + 1e-5) * wanted).sum() / (wanted.sum() + 1e-9)
            if C > c.top_k:
                # By index, not by threshold: scores of exactly 0 tie often, and a threshold would keep them all.
                # A stable sort gives ties to the lower row, as the engine does; topk is enough while training.
                ranked = score.detach().masked_fill(~seen, float("-inf"))
                best = ranked.topk(c.top_k, -1).indices if train else torch.sort(ranked, stable=True, dim=-1, descending=True).indices[..., :c.top_k]
                kept = torch.zeros_like(seen).scatter(-1, best, True) | ~sparse
                e = torch.where(kept[:, :, None, :], e, 0.0)
        below = below + e.sum(-1).view(T, H)
        above = above + torch.bmm(e.to(dtype).view(B, S * H, C), rows).view(T, H, d).float()
    o = rotate((above / below.unsqueeze(-1)).to(dtype), cos[:, None], -sin[:, None])
    weight = p["o_a_proj.weight"].to(dtype).view(c.output_groups, c.output_rank, -1)
    o = torch.einsum("tgi,goi->tgo", o.reshape(T, c.output_groups, -1), weight).reshape(T, -1)
    return linear(o, p["o_b_proj.weight"], dtype), indexer_loss, guide_loss


def mixture(x, p, c, table_ids, dtype):
    """x [T, D] float32. Returns (output, share of tokens per expert)."""
    T = x.shape[0]
    s = torch.sqrt(F.softplus(F.linear(x.float(), p["gate.weight"])))
    # One compiled graph for both kinds of layer: hash layers carry `hash` = True and their table's ids.
    chosen = torch.where(p["hash"], table_ids, (s.detach() + p["gate.e_score_correction_bias"]).topk(c.experts_used, -1).indices)
    w = s.gather(1, chosen)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * c.expert_scale
    w = torch.zeros_like(s).scatter(1, chosen, w)
    load = (w.detach() > 0).float().mean(0)
    up_gate = F.linear(x.to(dtype), p["experts.gate_up_proj"].to(dtype).view(-1, c.width)).view(T, c.experts, 2 * c.expert_width)
    g = up_gate[..., :c.expert_width].float().clamp(max=c.clamp)
    u = up_gate[..., c.expert_width:].float().clamp(-c.clamp, c.clamp)
    m = (F.silu(g) * u * w.unsqueeze(-1)).to(dtype)
    down = p["experts.down_proj"].to(dtype).permute(0, 2, 1).reshape(c.experts * c.expert_width, c.width)
    y = m.view(T, -1) @ down
    g = linear(x, p["shared_experts.gate_proj.weight"], dtype).float().clamp(max=c.clamp)
    u = linear(x, p["shared_experts.up_proj.weight"], dtype).float().clamp(-c.clamp, c.clamp)
    return y.float() + linear((F.silu(g) * u).to(dtype), p["shared_experts.down_proj.weight"], dtype).float(), load


def attention_site(X, p, c, *rest):
    x, post, mixing = hc_pre(X, p["hc.fn"], p["hc.base"], p["hc.scale"], c)
    dtype = rest[11]
    y, indexer_loss, guide_loss = attention(rms(x, p["ln.weight"], c.epsilon).to(dtype), p, c, *rest)
    return hc_post(X, y, post, mixing), indexer_loss, guide_loss


def ffn_site(X, p, c, table_ids, dtype):
    x, post, mixing = hc_pre(X, p["hc.fn"], p["hc.base"], p["hc.scale"], c)
    y, load = mixture(rms(x, p["ln.weight"], c.epsilon), p, c, table_ids, dtype)
    return hc_post(X, y, post, mixing), load


def head(X, p, output, target, weight, c, dtype):
    flat = X.reshape(X.shape[0], -1)
    m = F.linear(flat, p["hc_fn"]) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + c.epsilon)
    pre = torch.sigmoid(m * p["hc_scale"] + p["hc_base"]) + c.epsilon
    h = rms((pre.unsqueeze(-1) * X).sum(1), p["norm"], c.epsilon)
    z = linear(h, output, dtype).float()
    if target is None:
        return z
    loss = F.cross_entropy(z, target, reduction="none")
    return (loss * weight).sum() / weight.sum(), loss.detach(), z.detach().argmax(-1)


class Net(nn.Module):
    """Parameters under transformers' names, dots written as slashes. `buffers_` holds hash tables and router biases."""

    def __init__(self, c, seed=0, compiled=False, dtype=torch.float32, compressor_gain=1.0):
        super().__init__()
        self.c, self.dtype = c, dtype
        generator = torch.Generator().manual_seed(seed)
        P, self.buffers_ = {}, {}

        def matrix(name, *shape, gain=1.0):
            P[name] = torch.randn(*shape, generator=generator) * gain / math.sqrt(shape[-1])

        P["model.embed_tokens.weight"] = torch.randn(c.vocabulary, c.width, generator=generator)
        matrix("lm_head.weight", c.vocabulary, c.width, gain=0.5)
        P["model.norm.weight"] = torch.ones(c.width)
        mix = (2 + c.streams) * c.streams

        def hyper(prefix, site):
            # All streams start alike: each site leans on another one, and mixing starts near identity.
            matrix(prefix + "fn", mix, c.streams * c.width, gain=0.3)
            base = torch.zeros(mix)
            base[:c.streams] = -1.5
            base[site % c.streams] = 1.5
            base[2 * c.streams:] = (3.0 * torch.eye(c.streams)).flatten()
            P[prefix + "base"] = base
            P[prefix + "scale"] = torch.ones(3)

        matrix("model.hc_head.hc_fn", c.streams, c.streams * c.width, gain=0.3)
        P["model.hc_head.hc_base"] = torch.zeros(c.streams)
        P["model.hc_head.hc_scale"] = torch.ones(1)
        for i, ratio in enumerate(c.ratios):
            M = f"model.layers.{i}."
            hyper(M + "attn_hc.", 2 * i)
            hyper(M + "ffn_hc.", 2 * i + 1)
            P[M + "input_layernorm.weight"] = torch.ones(c.width)
            P[M + "post_attention_layernorm.weight"] = torch.ones(c.width)
            A = M + "self_attn."
            matrix(A + "q_a_proj.weight", c.query_rank, c.width)
            P[A + "q_a_norm.weight"] = torch.ones(c.query_rank)
            matrix(A + "q_b_proj.weight", c.heads * c.head_width, c.query_rank)
            matrix(A + "kv_proj.weight", c.head_width, c.width)
            P[A + "kv_norm.weight"] = torch.ones(c.head_width)
            matrix(A + "o_a_proj.weight", c.output_groups * c.output_rank, c.heads * c.head_width // c.output_groups)
            matrix(A + "o_b_proj.weight", c.width, c.output_groups * c.output_rank, gain=0.5)
            P[A + "sinks"] = torch.zeros(c.heads)
            if ratio:
                overlap = 2 if ratio == 4 else 1
                Q = A + "compressor."
                matrix(Q + "kv_proj.weight", overlap * c.head_width, c.width)
                matrix(Q + "gate_proj.weight", overlap * c.head_width, c.width)
                P[Q + "position_bias"] = torch.zeros(ratio, overlap * c.head_width)
                P[Q + "kv_norm.weight"] = torch.full((c.head_width,), float(compressor_gain))
                if ratio == 4:
                    Q += "indexer."
                    matrix(Q + "kv_proj.weight", 2 * c.indexer_width, c.width)
                    matrix(Q + "gate_proj.weight", 2 * c.indexer_width, c.width)
                    P[Q + "position_bias"] = torch.zeros(ratio, 2 * c.indexer_width)
                    P[Q + "kv_norm.weight"] = torch.ones(c.indexer_width)
                    matrix(Q + "q_b_proj.weight", c.indexer_heads * c.indexer_width, c.query_rank)
                    matrix(Q + "scorer.weights_proj.weight", c.indexer_heads, c.width)
            E = M + "mlp."
            matrix(E + "gate.weight", c.experts, c.width)
            if i < c.hash_layers:
                self.buffers_[E + "gate.tid2eid"] = torch.stack([torch.randperm(c.experts, generator=generator)[:c.experts_used] for _ in range(c.vocabulary)])
            else:
                self.buffers_[E + "gate.e_score_correction_bias"] = torch.zeros(c.experts)
            matrix(E + "experts.gate_up_proj", c.experts, 2 * c.expert_width, c.width)
            matrix(E + "experts.down_proj", c.experts, c.width, c.expert_width, gain=0.5)
            matrix(E + "shared_experts.gate_proj.weight", c.expert_width, c.width)
            matrix(E + "shared_experts.up_proj.weight", c.expert_width, c.width)
            matrix(E + "shared_experts.down_proj.weight", c.width, c.expert_width, gain=0.5)
        self.P = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(value) for name, value in P.items()})
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self._attention, self._ffn, self._head = wrap(attention_site), wrap(ffn_site), wrap(head)
        self._tables, self._layers = {}, None

    def named(self):
        return {name.replace("/", "."): value for name, value in self.P.items()}

    def state(self):
        return {**{k: v.detach() for k, v in self.named().items()}, **self.buffers_}

    def load(self, state):
        with torch.no_grad():
            for name, value in self.named().items():
                value.copy_(state[name].float())
            for name, value in self.buffers_.items():
                value.copy_(state[name])

    def move(self, device):
        self.to(device)
        self.buffers_ = {k: v.to(device) for k, v in self.buffers_.items()}
        self._tables, self._layers = {}, None
        return self

    def _sub(self, prefix):
        key = prefix.replace(".", "/")
        return {n[len(key):].replace("/", "."): v for n, v in self.P.items() if n.startswith(key)}

    def _layer_parameters(self):
        layers = []
        for i in range(len(self.c.ratios)):
            M = f"model.layers.{i}."
            a = self._sub(M + "self_attn.")
            a.update({"hc." + k: v for k, v in self._sub(M + "attn_hc.").items()})
            a["ln.weight"] = self.P[(M + "input_layernorm.weight").replace(".", "/")]
            f = self._sub(M + "mlp.")
            f.update({"hc." + k: v for k, v in self._sub(M + "ffn_hc.").items()})
            f["ln.weight"] = self.P[(M + "post_attention_layernorm.weight").replace(".", "/")]
            device = f["ln.weight"].device
            bias, table = self.buffers_.get(M + "mlp.gate.e_score_correction_bias"), self.buffers_.get(M + "mlp.gate.tid2eid")
            f["gate.e_score_correction_bias"] = torch.zeros(self.c.experts, device=device) if bias is None else bias
            f["hash"] = torch.tensor(table is not None, device=device)
            layers.append((a, f, torch.zeros(self.c.vocabulary, self.c.experts_used, dtype=torch.long, device=device) if table is None else table))
        top = self._sub("model.hc_head.")
        top["norm"] = self.P["model/norm/weight"]
        return layers, top

    def _table(self, B, S, device):
        if (B, S) not in self._tables:
            main, compressed = inverse_frequencies(self.c)
            position = torch.arange(S).float()
            t = {}
            for name, frequency in (("main", main), ("compressed", compressed)):
                angle = (position[:, None] * frequency).repeat(B, 1)
                t[name] = (angle.cos().to(device), angle.sin().to(device))
            for ratio in (4, 128):
                angle = (torch.arange(S // ratio).float() * ratio)[:, None] * compressed
                t[ratio] = (angle.cos().to(device), angle.sin().to(device))
            t["key"] = (torch.arange(2 * BLOCK)[None] - BLOCK).to(device)
            t["query"] = torch.arange(BLOCK)[:, None].to(device)
            t["hadamard"] = hadamard_matrix(self.c.indexer_width).to(device)
            t["row"] = torch.arange(B, device=device)[:, None]
            t["block"] = torch.arange(B * S, device=device).view(-1, BLOCK)[:, :1]
            t["first4"] = (torch.arange(S // 4, device=device) * 4)[None]
            self._tables[(B, S)] = t
        return self._tables[(B, S)]

    def forward(self, ids, target=None, weight=None, start=None, source=None, rounding=None, sparse=None, window=None, train=False, guide=False):
        """ids [B, S], S a multiple of 128. Without `target`: logits [B * S, V].

        start [B, S]: first position of each token's document. source [B, S]: see corpus.Document, for the guide loss.
        rounding, sparse, window: 0-dim tensors on the device (default: on, on, the config's window).
        """
        c, (B, S), device = self.c, ids.shape, ids.device
        t = self._table(B, S, device)
        if self._layers is None:
            self._layers = self._layer_parameters()
        rounding = torch.ones((), device=device) if rounding is None else rounding
        sparse = torch.ones((), dtype=torch.bool, device=device) if sparse is None else sparse
        window = torch.full((), c.window, device=device) if window is None else window
        start = torch.zeros_like(ids) if start is None else start
        source = torch.full_like(ids, -1) if source is None else source
        flat = ids.reshape(-1)
        near = (t["key"] <= t["query"]) & (t["key"] > t["query"] - window)
        own = (t["block"] + t["key"])[:, None, :] >= (start + t["row"] * S).view(-1, BLOCK, 1)
        near = near[None] & own
        first = start.view(B, S // 4, 4)[:, :, 0] == t["first4"]
        low = {r: torch.div(start + r - 1, r, rounding_mode="floor") for r in (4, 128)}
        X = F.embedding(flat, self.P["model/embed_tokens/weight"]).unsqueeze(1).expand(-1, c.streams, -1).contiguous()
        layers, top = self._layers
        indexer_losses, guide_losses, loads = [], [], []
        for (a, f, table), ratio in zip(layers, c.ratios):
            cos, sin = t["compressed"] if ratio else t["main"]
            shape = (B, S) if ratio else (1, B * S)
            X, indexer_loss, guide_loss = self._attention(X, a, c, ratio, *shape, cos, sin, near, low[ratio] if ratio else start, t.get(ratio), first,
                                                          t["hadamard"], source, self.dtype, rounding, sparse, train, guide)
            X, load = self._ffn(X, f, c, table[flat], self.dtype)
            if indexer_loss is not None:
                indexer_losses.append(indexer_loss)
            if guide_loss is not None:
                guide_losses.append(guide_loss)
            loads.append(load)
        return self._head(X, top, self.P["lm_head/weight"], target, weight, c, self.dtype), indexer_losses, guide_losses, loads


def transformers_config(c, **more):
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    return DeepseekV4Config(
        vocab_size=c.vocabulary, hidden_size=c.width, moe_intermediate_size=c.expert_width, num_hidden_layers=len(c.ratios), num_attention_heads=c.heads,
        head_dim=c.head_width, qk_rope_head_dim=c.rotary, q_lora_rank=c.query_rank, num_experts_per_tok=c.experts_used, n_routed_experts=c.experts,
        compress_ratios=list(c.ratios), num_hash_layers=c.hash_layers, swiglu_limit=c.clamp, sliding_window=c.window,
        o_groups=c.output_groups, o_lora_rank=c.output_rank, index_n_heads=c.indexer_heads, index_head_dim=c.indexer_width, index_topk=c.top_k,
        hc_sinkhorn_iters=c.sinkhorn, pad_token_id=2, use_cache=False,
        rope_parameters={"rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 65536, "rope_theta": 160000.0}, **more)
