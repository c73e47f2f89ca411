"""ggml's block formats as numpy functions: quantise float32 rows to bytes, and bytes back to float32.

Rows are any array whose last axis is a multiple of the block. Quantisers search a little; each minimises plain squared error.
"""
import numpy as np

F32, F16, Q8_0, Q2_K, Q4_K, IQ2_XXS, I32 = 0, 1, 8, 10, 12, 16, 26
SHAPE = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), Q2_K: (256, 84), Q4_K: (256, 144), IQ2_XXS: (256, 66), I32: (1, 4)}  # type: (values, bytes) a block
NAME = {F32: "F32", F16: "F16", Q8_0: "Q8_0", Q2_K: "Q2_K", Q4_K: "Q4_K", IQ2_XXS: "IQ2_XXS", I32: "I32"}

# IQ2_XXS: 256 patterns of eight magnitudes out of 8, 25, 43, as 2-bit digits, first value lowest.
_GRID_DIGITS = bytes.fromhex(
    "00000200050008000a00110014002000220028002a00410044005000580061006400800082008a00a20001010401100115014001840198010002020222028202"
    "010404041004210424044004420448046004810484049004a404000502050805200546056905800591050906100640068406a406000805080808140828084108"
    "440850085208880804094009020a140a01100410101021104010601084109010951000110811201150115a118011241245120014081420142514491480141815"
    "6215001616160118041810184018811800190519a019511a002002200a2044206120802082202921482100220222012404241024402456240025412564259026"
    "082820289428442a0140044010401840214024404040484056406040814084409040004120416141804185410142104248425642684200440844204480449944"
    "124524450046014804481048404845480049584961498249454a904a005008501150195020508050885004514251a4519152905492540a550156545600581158"
    "195864584059085a04601060406068600061556118626062006405641065126584654268008002800a8041808280048118814081118201840484108415844084"
    "608400854685948509864086608602880489118a0490109024904090a19016918091459200942294449451958198209902a050a085a009a100a218a450a804a9")
_MAGNITUDE = np.array([8, 25, 43, 0], np.float32)
GRID = _MAGNITUDE[(np.frombuffer(_GRID_DIGITS, "<u2").astype(np.int64)[:, None] >> (2 * np.arange(8))) & 3]
# Seven stored signs; the eighth makes the number of minus signs even.
SIGN_BITS = np.array([i | (bin(i).count("1") & 1) << 7 for i in range(128)], np.uint8)
SIGNS = 1.0 - 2.0 * ((SIGN_BITS[:, None] >> np.arange(8)) & 1).astype(np.float32)


def _half(x):
    return np.asarray(x, np.float32).astype(np.float16)


def _put(out, at, values):
    raw = np.ascontiguousarray(values).view(np.uint8)
    out[:, at:at + raw.shape[-1]] = raw


def _reciprocal(x):
    return np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)


# ---- Q8_0 ---------------------------------------------------------------------------------------------

def quantise_q8_0(x):
    b = x.reshape(-1, 32)
    d = _half(np.abs(b).max(1, keepdims=True) / 127)
    q = np.clip(np.rint(b * _reciprocal(d.astype(np.float32))), -127, 127).astype(np.int8)
    out = np.zeros((len(b), 34), np.uint8)
    _put(out, 0, d)
    _put(out, 2, q)
    return out.tobytes()


def dequantise_q8_0(raw):
    b = raw.reshape(-1, 34)
    return b[:, :2].copy().view(np.float16).astype(np.float32) * b[:, 2:].copy().view(np.int8).astype(np.float32)


# ---- K-quants: x = d * scale * q - dmin * min ---------------------------------------------------------------

def _fit_sub_blocks(x, levels):
    """Per sub-block (last axis) a step and an offset that minimise the squared error of step * q - offset, q in 0..levels."""
    best = None
    high, low = x.max(-1, keepdims=True), np.minimum(x.min(-1, keepdims=True), 0)
    for shrink in np.linspace(1.0, 0.55, 10, dtype=np.float32):
        step, offset = np.maximum((high - low) * shrink / levels, 0), -low * shrink
        for _ in range(3):
            q = np.clip(np.rint((x + offset) * _reciprocal(step)), 0, levels)
            # least squares for (step, offset) with q fixed
            n, sq, sqq = x.shape[-1], q.sum(-1, keepdims=True), (q * q).sum(-1, keepdims=True)
            sx, sxq = x.sum(-1, keepdims=True), (x * q).sum(-1, keepdims=True)
            denominator = n * sqq - sq * sq
            slope = np.where(denominator > 0, (n * sxq - sq * sx) * _reciprocal(denominator), step)
            shift = (slope * sq - sx) / n
            alone = np.where(sqq > 0, sxq * _reciprocal(sqq), step)  # the best step without an offset
            ok = (shift >= 0) & (slope > 0)
            step = np.where(ok, slope, np.maximum(alone, 0)).astype(np.float32)
            offset = np.where(ok, shift, 0).astype(np.float32)
        q = np.clip(np.rint((x + offset) * _reciprocal(step)), 0, levels)
        error = ((step * q - offset - x) ** 2).sum(-1, keepdims=True)
        if best is None:
            best = [step, offset, error]
        else:
            better = error < best[2]
            best = [np.where(better, new, old) for new, old in zip((step, offset, error), best)]
    return best[0], best[1]


def _k_quant(x, sub, levels, scale_levels):
    """Returns d, dmin (float16 [n, 1]), scales, mins and q [n, 256], scales chosen so that the stored product fits best."""
    b = x.reshape(-1, 256 // sub, sub)
    step, offset = _fit_sub_blocks(b, levels)
    d, dmin = _half(step.max(1) / scale_levels), _half(offset.max(1) / scale_levels)
    df, mf = d.astype(np.float32)[..., None], dmin.astype(np.float32)[..., None]
    scale0 = np.clip(np.rint(step * _reciprocal(df)), 0, scale_levels)
    least0 = np.clip(np.rint(offset * _reciprocal(mf)), 0, scale_levels)
    best = None
    for ds in (-1, 0, 1):
        for dm in (-1, 0, 1):
            scale, least = np.clip(scale0 + ds, 0, scale_levels), np.clip(least0 + dm, 0, scale_levels)
            q = np.clip(np.rint((b + mf * least) * _reciprocal(df * scale)), 0, levels)
            error = ((df * scale * q - mf * least - b) ** 2).sum(-1, keepdims=True)
            if best is None:
                best = [error, scale, least, q]
            else:
                better = error < best[0]
                best = [np.where(better, new, old) for new, old in zip((error, scale, least, q), best)]
    _, scale, least, q = best
    return d, dmin, scale[..., 0].astype(np.uint8), least[..., 0].astype(np.uint8), q.reshape(len(b), 256).astype(np.uint8)


def quantise_q2_k(x):
    d, dmin, scale, least, q = _k_quant(x, 16, 3, 15)
    out = np.zeros((len(q), 84), np.uint8)
    out[:, :16] = scale | least << 4
    q = q.reshape(-1, 2, 4, 32)
    out[:, 16:80] = (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).reshape(-1, 64)
    _put(out, 80, d)
    _put(out, 82, dmin)
    return out.tobytes()


def dequantise_q2_k(raw):
    b = raw.reshape(-1, 84)
    d, dmin = b[:, 80:82].copy().view(np.float16).astype(np.float32), b[:, 82:84].copy().view(np.float16).astype(np.float32)
    q = ((b[:, 16:80].reshape(-1, 2, 1, 32) >> (2 * np.arange(4, dtype=np.uint8))[None, None, :, None]) & 3).reshape(-1, 16, 16).astype(np.float32)
    scale, least = (b[:, :16] & 15).astype(np.float32), (b[:, :16] >> 4).astype(np.float32)
    return (d * scale)[..., None] * q - (dmin * least)[..., None]


def quantise_q4_k(x):
    d, dmin, scale, least, q = _k_quant(x, 32, 15, 63)
    out = np.zeros((len(q), 144), np.uint8)
    _put(out, 0, d)
    _put(out, 2, dmin)
    out[:, 4:8] = scale[:, :4] | (scale[:, 4:] >> 4) << 6
    out[:, 8:12] = least[:, :4] | (least[:, 4:] >> 4) << 6
    out[:, 12:16] = (scale[:, 4:] & 15) | (least[:, 4:] & 15) << 4
    q = q.reshape(-1, 4, 2, 32)
    out[:, 16:] = (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)
    return out.tobytes()


def dequantise_q4_k(raw):
    b = raw.reshape(-1, 144)
    d, dmin = b[:, :2].copy().view(np.float16).astype(np.float32), b[:, 2:4].copy().view(np.float16).astype(np.float32)
    s = b[:, 4:16]
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6) << 4], 1).astype(np.float32)
    least = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6) << 4], 1).astype(np.float32)
    nibbles = b[:, 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32).astype(np.float32)
    return (d * scale)[..., None] * q - (dmin * least)[..., None]


# ---- IQ2_XXS --------------------------------------------------------------------------------------------

def _nearest_patterns(v, scale):
    """v [n, 8], scale [n, 1] > 0 -> (grid index, sign index, error). Signs follow v; when their number is odd the
    value that costs least is taken with the wrong sign."""
    negative = v < 0
    odd = (negative.sum(1) & 1).astype(bool)
    least = np.abs(v).argmin(1)
    rows = np.arange(len(v))
    negative[rows[odd], least[odd]] ^= True
    magnitude = np.where(negative, -v, v)
    # |m - s g|^2 = |m|^2 - 2 s m.g + s^2 |g|^2
    cost = (scale * scale) * (GRID * GRID).sum(1)[None] - 2 * scale * (magnitude @ GRID.T)
    index = cost.argmin(1)
    sign = (negative[:, :7] * (1 << np.arange(7))).sum(1)
    return index, sign, cost[rows, index] + (v * v).sum(1)


def quantise_iq2_xxs(x, slice_blocks=1024):
    """Per block a few candidate values of d; per group of 32 the best of the scales around the fitted one."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, 256)
    out = np.zeros((len(blocks), 66), np.uint8)
    for at in range(0, len(blocks), slice_blocks):
        b = blocks[at:at + slice_blocks]
        n = len(b)
        groups = b.reshape(n * 8, 32)
        # a group's own best scale: try a ladder of scales without the block's constraint
        spread = np.sqrt((groups ** 2).mean(1)) + 1e-12
        fitted, fitted_error = None, None
        for ratio in (0.7, 0.85, 1.0, 1.15, 1.3):
            s = (spread * ratio / 22.0).astype(np.float32)
            _, _, e = _nearest_patterns(groups.reshape(-1, 8), np.repeat(s, 4)[:, None])
            e = e.reshape(-1, 4).sum(1)
            fitted = s if fitted is None else np.where(e < fitted_error, s, fitted)
            fitted_error = e if fitted_error is None else np.minimum(e, fitted_error)
        best = None
        for top in (13.5, 15.5):  # which stored scale the block's largest group gets
            d = _half(fitted.reshape(n, 8).max(1) * 4 / top)
            unit = np.repeat(d.astype(np.float32), 8) * 0.25
            level0 = np.clip(np.rint(fitted * _reciprocal(unit) - 0.5), 0, 15)
            pick = None
            for shift in (-1, 0, 1):
                level = np.clip(level0 + shift, 0, 15)
                scale = np.repeat((unit * (0.5 + level)).astype(np.float32), 4)[:, None]
                index, sign, e = _nearest_patterns(groups.reshape(-1, 8), scale)
                index, sign, e = index.reshape(-1, 4), sign.reshape(-1, 4), e.reshape(-1, 4).sum(1)
                if pick is None:
                    pick = [e, level, index, sign]
                else:
                    better = e < pick[0]
                    pick = [np.where(better, e, pick[0]), np.where(better, level, pick[1]),
                            np.where(better[:, None], index, pick[2]), np.where(better[:, None], sign, pick[3])]
            total = pick[0].reshape(n, 8).sum(1)
            found = [total, d, pick[1].reshape(n, 8), pick[2].reshape(n, 8, 4), pick[3].reshape(n, 8, 4)]
            if best is None:
                best = found
            else:
                better = total < best[0]
                best = [np.where(better.reshape((-1,) + (1,) * (new.ndim - 1)), new, old) for new, old in zip(found, best)]
        _, d, level, index, sign = best
        part = np.zeros((n, 66), np.uint8)
        _put(part, 0, d.astype(np.float16)[:, None])
        words = np.zeros((n, 8, 2), np.uint32)
        for k in range(4):
            words[:, :, 0] |= index[:, :, k].astype(np.uint32) << np.uint32(8 * k)
            words[:, :, 1] |= sign[:, :, k].astype(np.uint32) << np.uint32(7 * k)
        words[:, :, 1] |= level.astype(np.uint32) << np.uint32(28)
        _put(part, 2, words.reshape(n, 16))
        out[at:at + n] = part
    return out.tobytes()


def dequantise_iq2_xxs(raw):
    b = raw.reshape(-1, 66)
    d = b[:, :2].copy().view(np.float16).astype(np.float32)
    words = b[:, 2:].copy().view("<u4").reshape(-1, 8, 2)
    index = (words[:, :, 0, None] >> (8 * np.arange(4, dtype=np.uint32))) & 255
    sign = (words[:, :, 1, None] >> (7 * np.arange(4, dtype=np.uint32))) & 127
    scale = d * (0.5 + (words[:, :, 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return scale[:, :, None, None] * GRID[index] * SIGNS[sign]


# ---- by type --------------------------------------------------------------------------------------------

_QUANTISE = {Q8_0: quantise_q8_0, Q2_K: quantise_q2_k, Q4_K: quantise_q4_k, IQ2_XXS: quantise_iq2_xxs,
             F32: lambda x: np.ascontiguousarray(x, "<f4").tobytes(), F16: lambda x: np.ascontiguousarray(x, "<f4").astype("<f2").tobytes(),
             I32: lambda x: np.ascontiguousarray(x, "<i4").tobytes()}
_DEQUANTISE = {Q8_0: dequantise_q8_0, Q2_K: dequantise_q2_k, Q4_K: dequantise_q4_k, IQ2_XXS: dequantise_iq2_xxs,
               F32: lambda raw: raw.view("<f4"), F16: lambda raw: raw.view("<f2").astype(np.float32), I32: lambda raw: raw.view("<i4")}


def quantise(x, kind):
    return _QUANTISE[kind](x)


def dequantise(raw, kind, shape):
    return _DEQUANTISE[kind](np.frombuffer(raw, np.uint8)).reshape(shape)
