/* Expected numbers: test/fixtures/math.json, computed by an independent script. */
#include "quant/round_trip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"

namespace {

/* fp8_group64 */
constexpr float kFp8In[64] = {
    1.73911595f, 0.531051755f, -0.105237968f, -0.611115396f, -1.27269483f, -1.64131415f, 0.612058938f, -0.415739298f,
    -3.39295626f, -0.263920963f, 1.80851245f, -0.467791677f, -3.15067101f, -0.211381271f, 1.33445668f, 0.343397617f,
    -0.727726579f, 3.14209104f, 3.22991991f, -0.167322561f, 1.3828572f, 0.667240441f, 1.32845294f, 2.4705615f,
    1.39431632f, 0.149099082f, -1.11095965f, -1.38020766f, -0.0434148945f, 1.96891367f, 0.510885477f, 0.0901962966f,
    0.437361598f, 0.0607628673f, 0.930302382f, -1.90903473f, -3.35792112f, -0.722755075f, -1.95342553f, 2.74573469f,
    -0.26941067f, -0.429884672f, -2.61486197f, 0.479546249f, -1.06014061f, 1.90709782f, 1.43007576f, -1.31902337f,
    0.698217928f, -4.62810755f, -1.14461815f, 2.11857653f, 1.34335363f, 0.29807952f, -0.0498008244f, -2.41317415f,
    -2.31194282f, 0.379799664f, 2.99502492f, -3.69051266f, 1.06842995f, 1.02203405f, 1.6162883f, -1.47771931f,
};
constexpr float kFp8Out[64] = {
    1.75f, 0.5f, -0.1015625f, -0.625f, -1.25f, -1.625f, 0.625f, -0.40625f,
    -3.5f, -0.25f, 1.75f, -0.46875f, -3.25f, -0.21875f, 1.375f, 0.34375f,
    -0.75f, 3.25f, 3.25f, -0.171875f, 1.375f, 0.6875f, 1.375f, 2.5f,
    1.375f, 0.15625f, -1.125f, -1.375f, -0.04296875f, 2.0f, 0.5f, 0.09375f,
    0.4375f, 0.0625f, 0.9375f, -1.875f, -3.25f, -0.75f, -2.0f, 2.75f,
    -0.28125f, -0.4375f, -2.5f, 0.46875f, -1.0f, 1.875f, 1.375f, -1.375f,
    0.6875f, -4.5f, -1.125f, 2.0f, 1.375f, 0.3125f, -0.05078125f, -2.5f,
    -2.25f, 0.375f, 3.0f, -3.75f, 1.125f, 1.0f, 1.625f, -1.5f,
};

/* indexer_hadamard_fp4 */
constexpr float kHadamardIn[128] = {
    -0.529007077f, 0.0456840955f, -1.02755177f, -1.22928929f, -0.883358479f, -0.0708934665f, 0.374053359f, -0.0245937388f,
    0.0772606581f, -0.683913231f, -0.720837653f, 1.12062287f, -0.0548141599f, -0.0824137256f, 0.935986519f, 1.23853707f,
    1.27279556f, 0.405892223f, -0.0503252223f, 0.289317548f, 0.179305673f, 1.39748061f, 0.292046785f, 0.638405681f,
    -0.0278877132f, 1.37105191f, -2.05280757f, 0.380509079f, 0.755390644f, -1.1591258f, 2.15031004f, -0.150270224f,
    -0.161164284f, -1.0794425f, 0.877966166f, 0.224467412f, -0.591593444f, 0.226262808f, 0.686182499f, 1.21500456f,
    0.216059446f, -0.964823544f, -0.556607783f, -2.29838753f, -0.732082129f, 0.73646909f, 0.46571672f, -0.107876047f,
    -0.341436297f, 1.58453381f, 0.282241195f, 0.909546375f, 0.395071566f, -0.669376493f, 1.55536902f, -1.23813903f,
    -1.19617343f, -0.429149508f, -0.729659915f, -0.557468891f, -0.599953055f, 0.986827195f, 0.0541946739f, 0.351907432f,
    -1.58796954f, -0.846951365f, 1.08457029f, -1.20382667f, 1.17853093f, -1.03066587f, 0.299218327f, -0.846239984f,
    0.1966203f, -0.899637818f, -0.256605417f, 1.67254782f, -0.375269651f, 2.03679466f, -0.458793402f, -1.17576969f,
    0.0750524998f, -0.408990204f, 1.75653195f, 0.860923052f, 1.18127394f, 0.631670177f, 2.4709971f, 0.794302523f,
    0.531352878f, -0.829398572f, -0.909303844f, 0.18423593f, 0.997738183f, 1.1169591f, -0.944000542f, 0.531406701f,
    0.193345994f, -1.1182636f, 0.511845589f, -2.27056623f, 0.263163537f, 2.47131348f, -1.01988518f, 0.0187526159f,
    -1.89426422f, -0.755001664f, 0.756197751f, -1.04246199f, -0.0342581421f, -0.355168313f, -0.37842837f, 0.19064869f,
    0.484396309f, 1.23026776f, 0.832970619f, -0.564941764f, 1.41469598f, 1.24828124f, -1.55894804f, 0.665232599f,
    0.8255952f, 0.966318846f, 0.547175288f, -1.29718328f, -0.267634332f, -2.07020664f, -0.157892555f, 2.02894258f,
};
constexpr float kAfterHadamard[128] = {
    0.740994036f, 0.332519561f, -0.0403982177f, -0.693427086f, -2.28839183f, 0.677609861f, 0.0755607858f, -0.123520777f,
    1.40959048f, 1.02074623f, 0.209090516f, -1.18087018f, 0.315510958f, 0.389515847f, -0.974388659f, -0.710165799f,
    -2.51492238f, 0.329210192f, -0.692172885f, -0.798498809f, -0.940243006f, 1.66908193f, -1.26404011f, 0.596279562f,
    -1.7042681f, 0.151615649f, 0.102357306f, 0.333055258f, -0.757257164f, 0.266468644f, 1.13344419f, -0.966776848f,
    1.02763283f, -0.00439688563f, -0.320889086f, 1.07010305f, -0.16589345f, -1.85316086f, -0.328309536f, 1.90558875f,
    -1.23777878f, 1.01426041f, -1.07417023f, -1.01913166f, -0.574634075f, 0.601740062f, 1.00121796f, -1.37757862f,
    -0.571742892f, -0.57529366f, -0.110448852f, 0.0244067553f, 1.32673836f, -1.0979501f, 0.0873528421f, -0.692440093f,
    -1.60306919f, 0.641268432f, 1.11277199f, -0.530984104f, 0.0504044071f, -1.90234792f, 0.316311657f, -1.21831536f,
    -0.265102774f, -0.697150826f, -0.649931252f, -0.29840216f, -0.159614921f, -1.64102626f, 2.27595496f, 1.77915144f,
    -0.133463636f, -0.760153294f, -0.43585977f, 0.509304881f, 1.42291403f, 0.0930264369f, 0.191558525f, 0.29100123f,
    0.851665676f, 0.0745926946f, -0.634577334f, 1.19563293f, -0.154196694f, 1.40561545f, 1.30456233f, -0.575279236f,
    0.238576442f, -0.848542809f, -0.785754561f, -0.489349097f, -0.132375047f, -0.767737269f, -0.620831847f, 0.408283561f,
    -0.0265331678f, -0.619663358f, 0.957950234f, 0.603478432f, 0.176314846f, 0.440687954f, 1.72274196f, -1.36707747f,
    -0.751690209f, -1.57595611f, 3.16145658f, -0.159769088f, -0.653022408f, 2.7996242f, -1.22741485f, 1.37959266f,
    -0.312924504f, -0.35444665f, -0.523643196f, -0.434905052f, -0.891512096f, -0.141421139f, -0.774897277f, 0.391554415f,
    0.122553252f, 0.758727729f, 0.388625503f, -0.941451252f, 0.405386329f, -0.881936371f, 1.43303704f, 0.89443773f,
};
constexpr float kAfterFp4[128] = {
    0.75f, 0.25f, -0.0f, -0.75f, -2.0f, 0.75f, 0.0f, -0.0f,
    1.5f, 1.0f, 0.25f, -1.0f, 0.25f, 0.5f, -1.0f, -0.75f,
    -3.0f, 0.25f, -0.75f, -0.75f, -1.0f, 1.5f, -1.5f, 0.5f,
    -1.5f, 0.25f, 0.0f, 0.25f, -0.75f, 0.25f, 1.0f, -1.0f,
    1.0f, -0.0f, -0.25f, 1.0f, -0.25f, -2.0f, -0.25f, 2.0f,
    -1.0f, 1.0f, -1.0f, -1.0f, -0.5f, 0.5f, 1.0f, -1.5f,
    -0.5f, -0.5f, -0.0f, 0.0f, 1.5f, -1.0f, 0.0f, -0.75f,
    -1.5f, 0.75f, 1.0f, -0.5f, 0.0f, -2.0f, 0.25f, -1.0f,
    -0.25f, -0.75f, -0.75f, -0.25f, -0.25f, -1.5f, 2.0f, 2.0f,
    -0.25f, -0.75f, -0.5f, 0.5f, 1.5f, 0.0f, 0.25f, 0.25f,
    0.75f, 0.0f, -0.75f, 1.0f, -0.25f, 1.5f, 1.5f, -0.5f,
    0.25f, -0.75f, -0.75f, -0.5f, -0.25f, -0.75f, -0.5f, 0.5f,
    -0.0f, -0.5f, 1.0f, 0.5f, 0.0f, 0.5f, 1.5f, -1.5f,
    -1.0f, -1.5f, 3.0f, -0.0f, -0.5f, 3.0f, -1.0f, 1.5f,
    -0.5f, -0.5f, -0.5f, -0.5f, -1.0f, -0.0f, -1.0f, 0.5f,
    0.0f, 1.0f, 0.5f, -1.0f, 0.5f, -1.0f, 1.5f, 1.0f,
};

/* One value in a group whose largest value fixes the scale to 1. */
float through_fp8(float x) {
    std::vector<float> group = {448.0f, x};
    ds4::quant::fp8_round_trip(group.data(), 2);
    return group[1];
}

float through_fp4(float x) {
    std::vector<float> group = {6.0f, x};
    ds4::quant::fp4_round_trip(group.data(), 2);
    return group[1];
}

} // namespace

TEST("a group of 64 through E4M3 equals the example") {
    std::vector<float> x(kFp8In, kFp8In + 64);

    ds4::quant::fp8_round_trip(x.data(), 64);

    CHECK_NEAR("fp8", x, std::vector<float>(kFp8Out, kFp8Out + 64), 0.0);
}

TEST("E4M3 ties go to the even code, also below the normal range") {
    CHECK(through_fp8(1.0625f) == 1.0f);
    CHECK(through_fp8(1.1875f) == 1.25f);
    CHECK(through_fp8(-1.1875f) == -1.25f);
    CHECK(through_fp8(0x1p-10f) == 0.0f);
    CHECK(through_fp8(3 * 0x1p-10f) == 0x1p-8f);
    CHECK(through_fp8(15 * 0x1p-10f) == 0x1p-6f);
}

TEST("every E4M3 value survives, and rounding picks a nearest one") {
    std::vector<float> values;
    for (int code = 0; code < 127; ++code) { /* 127 is not-a-number */
        const int exponent = code >> 3;
        const int mantissa = code & 7;
        values.push_back(exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10));
    }
    CHECK(values.back() == 448.0f);

    for (const float value : values) {
        CHECK(through_fp8(value) == value);
        CHECK(through_fp8(-value) == -value);
    }
    ds4::test::Random random(1);
    for (int i = 0; i < 2000; ++i) {
        const float x = std::ldexp(random.uniform(), static_cast<int>(random.below(19)) - 10);
        float       nearest = INFINITY;
        for (const float value : values) {
            nearest = std::min(nearest, std::fabs(std::fabs(x) - value));
        }
        CHECK(std::fabs(through_fp8(x) - x) == nearest);
    }
}

TEST("the scale of a group is an exact power of two next to powers of two") {
    for (const float top : {448.0f, std::nextafter(448.0f, 1000.0f), 224.0f, std::nextafter(224.0f, 0.0f)}) {
        std::vector<float> group = {top, 1.0f};
        ds4::quant::fp8_round_trip(group.data(), 2);
        CHECK(group[1] == 1.0f);
        CHECK(std::fabs(group[0] - top) <= top / 16);
    }
}

TEST("a group of zeros and a last short group are fine") {
    std::vector<float> x(70, 0.0f);
    x[65] = 3.0f;

    ds4::quant::fp8_round_trip(x.data(), 70);

    CHECK(x[0] == 0.0f);
    CHECK(x[65] == 3.0f);
    CHECK(x[69] == 0.0f);
}

TEST("E2M1 ties go to the even code") {
    CHECK(through_fp4(0.25f) == 0.0f);
    CHECK(through_fp4(0.75f) == 1.0f);
    CHECK(through_fp4(1.25f) == 1.0f);
    CHECK(through_fp4(1.75f) == 2.0f);
    CHECK(through_fp4(2.5f) == 2.0f);
    CHECK(through_fp4(3.5f) == 4.0f);
    CHECK(through_fp4(5.0f) == 4.0f);
    CHECK(through_fp4(-5.5f) == -6.0f);
    CHECK(through_fp4(2.9f) == 3.0f);
}

TEST("the transform and the 4-bit rounding equal the example") {
    std::vector<float> x(kHadamardIn, kHadamardIn + 128);

    ds4::quant::hadamard(x.data(), 128);
    CHECK_NEAR("hadamard", x, std::vector<float>(kAfterHadamard, kAfterHadamard + 128), 1e-6);

    ds4::quant::fp4_round_trip(x.data(), 128);
    CHECK_NEAR("fp4", x, std::vector<float>(kAfterFp4, kAfterFp4 + 128), 0.0);
}

TEST("the transform is its own inverse") {
    ds4::test::Random  random(2);
    std::vector<float> x = random.normals(64);
    std::vector<float> twice = x;

    ds4::quant::hadamard(twice.data(), 64);
    ds4::quant::hadamard(twice.data(), 64);

    CHECK_NEAR("hadamard twice", twice, x, 1e-6);
}

TEST("not-a-number stays one") {
    std::vector<float> x(64, 1.0f);
    x[5] = NAN;
    std::vector<float> y = x;

    ds4::quant::fp8_round_trip(x.data(), 64);
    ds4::quant::fp4_round_trip(y.data(), 64);

    CHECK(std::isnan(x[5]) && x[6] == 1.0f);
    CHECK(std::isnan(y[5]) && y[6] == 1.0f);
}
