#include "backend/cpu/ops_test.h"

#include "backend/cpu/sinkhorn.h"
#include "backend/parity/hyper_connection.h"

namespace ds4::backend::cpu::test {

namespace {

/* hc_split of test/fixtures/math.json, computed by an independent script in double. */
constexpr float kMix[24] = {0.6815708875656128f,   0.8362035751342773f,  -0.5134880542755127f, -1.0157365798950195f,
                            -1.0702708959579468f,  0.12391265481710434f, -0.8030158877372742f, -0.6376357674598694f,
                            1.1444956064224243f,   -1.6409019231796265f, -1.314003586769104f,  -0.5103524923324585f,
                            -0.09986088424921036f, -0.12950676679611206f, -1.3967050313949585f, 0.19380934536457062f,
                            -0.12929272651672363f, 0.3544791042804718f,  -1.0828726291656494f, 0.24493923783302307f,
                            0.22082078456878662f,  -0.6604324579238892f, -0.2185351550579071f, -0.5559990406036377f};
constexpr float kScale[3] = {0.7f, 1.1f, 0.9f};
constexpr float kBase[24] = {0.6781905293464661f,  -1.5598043203353882f,  -0.723835825920105f,   -0.8528926968574524f,
                             -0.18905995786190033f, -0.3392469584941864f, -0.20562297105789185f, 0.3595063090324402f,
                             -0.8162597417831421f, -0.42284682393074036f, -0.11155002564191818f, -0.6011091470718384f,
                             0.18499384820461273f, 0.16499868035316467f,  -0.35522329807281494f, -0.8855535984039307f,
                             0.8004179000854492f,  0.23554903268814087f,  0.211875319480896f,    0.03613024204969406f,
                             -0.003673483384773135f, 0.41553783416748047f, -0.007802762556821108f, -0.3154531717300415f};
constexpr double kComb[16] = {0.37971667551411226, 0.08014031103158341, 0.2808361748312043,  0.2593058386231001,
                              0.2291777893958523,  0.3820717415796942,  0.1388525827842831,  0.24989688624017034,
                              0.20352344202163636, 0.31234052371250526, 0.16002109463638323, 0.32411393962947527,
                              0.18758109306839907, 0.2254464236762172,  0.4202891477481293,  0.16668233550725448};

double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

/* The same steps in double. */
std::vector<double> balanced(std::vector<double> c, int64_t hc, int64_t iterations, double epsilon) {
    const auto n = static_cast<size_t>(hc);
    for (size_t a = 0; a < n; ++a) {
        double top = c[a * n];
        for (size_t b = 0; b < n; ++b) {
            top = std::max(top, c[a * n + b]);
        }
        double total = 0.0;
        for (size_t b = 0; b < n; ++b) {
            total += c[a * n + b] = std::exp(c[a * n + b] - top);
        }
        for (size_t b = 0; b < n; ++b) {
            c[a * n + b] = c[a * n + b] / total + epsilon;
        }
    }
    const auto divide = [&](size_t outer, size_t inner) { /* steps between the lines and within a line */
        for (size_t line = 0; line < n; ++line) {
            double total = epsilon;
            for (size_t i = 0; i < n; ++i) {
                total += c[line * outer + i * inner];
            }
            for (size_t i = 0; i < n; ++i) {
                c[line * outer + i * inner] /= total;
            }
        }
    };
    divide(1, n);
    for (int64_t i = 1; i < iterations; ++i) {
        divide(n, 1);
        divide(1, n);
    }
    return c;
}

/* Streams [hc, width] of one token as one row [width], mixed by its gates and normalised. */
void collapse(const std::vector<double> &streams, const std::vector<double> &gates, const std::vector<float> &norm,
              std::vector<double> &out) {
    std::vector<double> x(norm.size());
    for (size_t s = 0; s < gates.size(); ++s) {
        for (size_t i = 0; i < x.size(); ++i) {
            x[i] += gates[s] * streams[s * x.size() + i];
        }
    }
    const double normal = rms_scale(x, 1e-6);
    for (size_t i = 0; i < x.size(); ++i) {
        out.push_back(x[i] * normal * static_cast<double>(norm[i]));
    }
}

std::vector<double> in_double(const parity::HcPreCase &in) {
    const parity::StreamsShape &shape = in.shape;
    const auto                  hc = static_cast<size_t>(shape.hc);
    const auto                  mixes = multiply(in.fn, true, in.streams, shape.tokens);
    std::vector<double>         xs, posts, combs;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const std::vector<double> own(in.streams.begin() + t * shape.columns(), in.streams.begin() + (t + 1) * shape.columns());
        const double              inverse = rms_scale(own, 1e-6);
        const double             *mix = mixes.data() + t * shape.mixes();
        const auto                logit = [&](size_t i, size_t kind) {
            return mix[i] * inverse * static_cast<double>(in.scale[kind]) + static_cast<double>(in.base[i]);
        };
        std::vector<double> pre, comb;
        for (size_t s = 0; s < hc; ++s) {
            pre.push_back(sigmoid(logit(s, 0)) + 1e-6);
            posts.push_back(2.0 * sigmoid(logit(hc + s, 1)));
        }
        for (size_t i = 0; i < hc * hc; ++i) {
            comb.push_back(logit(2 * hc + i, 2));
        }
        comb = balanced(comb, shape.hc, shape.iterations, 1e-6);
        combs.insert(combs.end(), comb.begin(), comb.end());
        collapse(own, pre, in.norm, xs);
    }
    xs.insert(xs.end(), posts.begin(), posts.end());
    xs.insert(xs.end(), combs.begin(), combs.end());
    return xs;
}

std::vector<double> in_double(const parity::HcPostCase &in) {
    const parity::StreamsShape &shape = in.shape;
    std::vector<double>         want;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t b = 0; b < shape.hc; ++b) {
            for (int64_t i = 0; i < shape.width; ++i) {
                double value = static_cast<double>(in.post[static_cast<size_t>(t * shape.hc + b)]) *
                               static_cast<double>(in.y[static_cast<size_t>(t * shape.width + i)]);
                for (int64_t a = 0; a < shape.hc; ++a) {
                    value += static_cast<double>(in.comb[static_cast<size_t>((t * shape.hc + a) * shape.hc + b)]) *
                             static_cast<double>(in.streams[static_cast<size_t>(t * shape.columns() + a * shape.width + i)]);
                }
                want.push_back(value);
            }
        }
    }
    want.push_back(-1.0); /* no layer is bad */
    return want;
}

std::vector<double> in_double(const parity::HcHeadCase &in) {
    const parity::StreamsShape &shape = in.shape;
    const auto                  mixes = multiply(in.fn, true, in.streams, shape.tokens);
    std::vector<double>         want;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const std::vector<double> own(in.streams.begin() + t * shape.columns(), in.streams.begin() + (t + 1) * shape.columns());
        const double              inverse = rms_scale(own, 1e-6);
        std::vector<double>       gates;
        for (size_t s = 0; s < static_cast<size_t>(shape.hc); ++s) {
            gates.push_back(sigmoid(mixes[static_cast<size_t>(t * shape.hc) + s] * inverse * static_cast<double>(in.scale[0]) +
                                    static_cast<double>(in.base[s])) + 1e-6);
        }
        collapse(own, gates, in.norm, want);
    }
    return want;
}

template <typename Case> void check_streams(const std::string &name, double tolerance, const Case &in) {
    check_op(name, in.shape.tokens, Settings::one_arithmetic, tolerance,
             [&](Backend &backend, int64_t piece) {
                 if constexpr (std::is_same_v<Case, parity::HcPreCase>) {
                     return in.run(backend, piece).all();
                 } else {
                     return in.run(backend, piece);
                 }
             },
             [&](bool) { return in_double(in); });
}

} // namespace

TEST("the mixing matrix equals the example") {
    std::vector<float> comb(16);
    for (size_t i = 0; i < 16; ++i) {
        comb[i] = kMix[8 + i] * kScale[2] + kBase[8 + i];
    }

    balance(comb.data(), 4, 20, 1e-6f);

    CHECK_NEAR("comb", comb, std::vector<double>(kComb, kComb + 16), 3e-7);
}

TEST("four streams take the same steps as any number of them") {
    for (const int64_t hc : {1, 2, 3, 4, 5}) {
        for (const int64_t iterations : {1, 2, 20}) {
            Random             random(static_cast<uint64_t>(hc));
            std::vector<float> comb = random.normals(hc * hc, 3.0f);
            const auto want = balanced(std::vector<double>(comb.begin(), comb.end()), hc, iterations, 1e-6);

            balance(comb.data(), hc, iterations, 1e-6f);

            CHECK_NEAR("balance " + std::to_string(hc) + " x " + std::to_string(iterations), comb, want, 1e-6);
        }
    }
}

TEST("streams are mixed, collapsed and normalised in front of a sublayer") {
    for (const parity::StreamsShape &shape : parity::kStreamsShapes) {
        for (const quant::Type type : shape.types) {
            if (tried_on_cpu(shape.slow)) {
                const parity::HcPreCase in(shape, type);
                check_streams(in.name(), parity::sum_tolerance(shape.columns()), in);
            }
        }
    }
}

TEST("streams are expanded behind a sublayer, source before destination") {
    for (const parity::StreamsShape &shape : parity::kStreamsShapes) {
        if (tried_on_cpu(shape.slow)) {
            check_streams(shape.name("hc_post"), 1e-13, parity::HcPostCase(shape));
        }
    }
}

TEST("the head collapses the streams with one gate each and no factor two") {
    for (const parity::StreamsShape &shape : parity::kStreamsShapes) {
        for (const quant::Type type : shape.types) {
            if (tried_on_cpu(shape.slow)) {
                const parity::HcHeadCase in(shape, type);
                check_streams(in.name(), parity::sum_tolerance(shape.columns()), in);
            }
        }
    }
}

TEST("the first layer whose last token is not finite is remembered") {
    constexpr int64_t        hc = 2, width = 24, tokens = 3;
    const std::vector<float> post(tokens * hc, 1.0f);
    std::vector<float>       comb(tokens * hc * hc, 0.0f);
    std::vector<float>       y(tokens * width, 0.5f);
    Backend                  backend = open(1, false, DS4_ISA_AUTO);
    int32_t                  bad_layer = -1;
    const auto               layer = [&](int32_t number) {
        std::vector<float> streams(tokens * hc * width, 1.0f);
        backend.ops->hc_post({tokens, hc, width, streams.data(), y.data(), post.data(), comb.data(), number, &bad_layer});
        return bad_layer;
    };

    CHECK(layer(0) == -1);
    y[0] = NAN; /* a token that is not the last */
    CHECK(layer(1) == -1);
    y[2 * width + 7] = INFINITY;
    CHECK(layer(2) == 2);
    CHECK(layer(3) == 2);
}

} // namespace ds4::backend::cpu::test
