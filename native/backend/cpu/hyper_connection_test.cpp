#include "backend/cpu/ops_test.h"

#include "backend/cpu/sinkhorn.h"

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

struct Shape {
    int64_t tokens, hc, width;
};
constexpr Shape kShapes[] = {{10, 4, 128}, {9, 4, 1000}, {3, 2, 40}, {4, 3, 64}, {1, 4, 4096}};

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
    for (const Shape &shape : kShapes) {
        for (const quant::Type type : {quant::Type::f32, quant::Type::f16}) {
            const int64_t            columns = shape.hc * shape.width;
            const int64_t            mix_count = 2 * shape.hc + shape.hc * shape.hc;
            Random                   random(21);
            const OwnedMatrix        fn = random_matrix(type, mix_count, columns, random);
            const std::vector<float> streams = random.normals(shape.tokens * columns);
            const std::vector<float> base = random.normals(mix_count);
            const std::vector<float> scale = {0.1f, 0.2f, 0.15f};
            const std::vector<float> norm = random.normals(shape.width);
            const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
                std::vector<float> x(static_cast<size_t>(shape.tokens * shape.width));
                std::vector<float> post(static_cast<size_t>(shape.tokens * shape.hc));
                std::vector<float> comb(static_cast<size_t>(shape.tokens * shape.hc * shape.hc));
                int64_t            first = 0;
                for (const int64_t piece : pieces) {
                    ops.hc_pre({piece, shape.hc, shape.width, streams.data() + first * columns, &fn.matrix, base.data(),
                                scale.data(), 20, 1e-6f, norm.data(), 1e-6f, x.data() + first * shape.width,
                                post.data() + first * shape.hc, comb.data() + first * shape.hc * shape.hc});
                    first += piece;
                }
                x.insert(x.end(), post.begin(), post.end());
                x.insert(x.end(), comb.begin(), comb.end());
                return x;
            };
            check_op("hc_pre " + std::to_string(shape.width), shape.tokens, Settings::one_arithmetic, 1e-11, run, [&](bool) {
                const auto          hc = static_cast<size_t>(shape.hc);
                const auto          width = static_cast<size_t>(shape.width);
                const auto          mixes = multiply(fn, true, streams, shape.tokens);
                std::vector<double> xs, posts, combs;
                for (int64_t t = 0; t < shape.tokens; ++t) {
                    const std::vector<double> own(streams.begin() + t * columns, streams.begin() + (t + 1) * columns);
                    const double              inverse = rms_scale(own, 1e-6);
                    const double             *mix = mixes.data() + t * mix_count;
                    const auto logit = [&](size_t i, size_t kind) {
                        return mix[i] * inverse * static_cast<double>(scale[kind]) + static_cast<double>(base[i]);
                    };
                    std::vector<double> x(width), comb(hc * hc);
                    for (size_t s = 0; s < hc; ++s) {
                        const double pre = sigmoid(logit(s, 0)) + 1e-6;
                        for (size_t i = 0; i < width; ++i) {
                            x[i] += pre * own[s * width + i];
                        }
                        posts.push_back(2.0 * sigmoid(logit(hc + s, 1)));
                    }
                    for (size_t i = 0; i < hc * hc; ++i) {
                        comb[i] = logit(2 * hc + i, 2);
                    }
                    comb = balanced(comb, shape.hc, 20, 1e-6);
                    combs.insert(combs.end(), comb.begin(), comb.end());
                    const double normal = rms_scale(x, 1e-6);
                    for (size_t i = 0; i < width; ++i) {
                        xs.push_back(x[i] * normal * static_cast<double>(norm[i]));
                    }
                }
                xs.insert(xs.end(), posts.begin(), posts.end());
                xs.insert(xs.end(), combs.begin(), combs.end());
                return xs;
            });
        }
    }
}

TEST("streams are expanded behind a sublayer, source before destination") {
    for (const Shape &shape : kShapes) {
        const int64_t            columns = shape.hc * shape.width;
        Random                   random(22);
        const std::vector<float> streams = random.normals(shape.tokens * columns);
        const std::vector<float> y = random.normals(shape.tokens * shape.width);
        const std::vector<float> post = random.normals(shape.tokens * shape.hc);
        const std::vector<float> comb = random.normals(shape.tokens * shape.hc * shape.hc);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> out = streams;
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.hc_post({piece, shape.hc, shape.width, out.data() + first * columns, y.data() + first * shape.width,
                             post.data() + first * shape.hc, comb.data() + first * shape.hc * shape.hc, 0, nullptr});
                first += piece;
            }
            return out;
        };
        check_op("hc_post " + std::to_string(shape.width), shape.tokens, Settings::one_arithmetic, 1e-13, run, [&](bool) {
            std::vector<double> want;
            for (int64_t t = 0; t < shape.tokens; ++t) {
                for (int64_t b = 0; b < shape.hc; ++b) {
                    for (int64_t i = 0; i < shape.width; ++i) {
                        double value = static_cast<double>(post[static_cast<size_t>(t * shape.hc + b)]) *
                                       static_cast<double>(y[static_cast<size_t>(t * shape.width + i)]);
                        for (int64_t a = 0; a < shape.hc; ++a) {
                            value += static_cast<double>(comb[static_cast<size_t>((t * shape.hc + a) * shape.hc + b)]) *
                                     static_cast<double>(streams[static_cast<size_t>(t * columns + a * shape.width + i)]);
                        }
                        want.push_back(value);
                    }
                }
            }
            return want;
        });
    }
}

TEST("the head collapses the streams with one gate each and no factor two") {
    for (const Shape &shape : kShapes) {
        const int64_t            columns = shape.hc * shape.width;
        Random                   random(23);
        const OwnedMatrix        fn = random_matrix(quant::Type::f16, shape.hc, columns, random);
        const std::vector<float> streams = random.normals(shape.tokens * columns);
        const std::vector<float> base = random.normals(shape.hc);
        const float              scale = 0.3f;
        const std::vector<float> norm = random.normals(shape.width);
        const auto               run = [&](Ops &ops, const std::vector<int64_t> &pieces) {
            std::vector<float> x(static_cast<size_t>(shape.tokens * shape.width));
            int64_t            first = 0;
            for (const int64_t piece : pieces) {
                ops.hc_head({piece, shape.hc, shape.width, streams.data() + first * columns, &fn.matrix, base.data(), &scale,
                             1e-6f, norm.data(), 1e-6f, x.data() + first * shape.width});
                first += piece;
            }
            return x;
        };
        check_op("hc_head " + std::to_string(shape.width), shape.tokens, Settings::one_arithmetic, 1e-11, run, [&](bool) {
            const auto          width = static_cast<size_t>(shape.width);
            const auto          mixes = multiply(fn, true, streams, shape.tokens);
            std::vector<double> want;
            for (int64_t t = 0; t < shape.tokens; ++t) {
                const std::vector<double> own(streams.begin() + t * columns, streams.begin() + (t + 1) * columns);
                const double              inverse = rms_scale(own, 1e-6);
                std::vector<double>       x(width);
                for (size_t s = 0; s < static_cast<size_t>(shape.hc); ++s) {
                    const double gate = sigmoid(mixes[static_cast<size_t>(t * shape.hc) + s] * inverse * static_cast<double>(scale) +
                                                static_cast<double>(base[s])) + 1e-6;
                    for (size_t i = 0; i < width; ++i) {
                        x[i] += gate * own[s * width + i];
                    }
                }
                const double normal = rms_scale(x, 1e-6);
                for (size_t i = 0; i < width; ++i) {
                    want.push_back(x[i] * normal * static_cast<double>(norm[i]));
                }
            }
            return want;
        });
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
