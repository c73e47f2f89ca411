#include "backend/cpu/sinkhorn.h"

#include <cmath>

namespace ds4::backend::cpu {

namespace {

void divide_columns(float *comb, int64_t hc, float epsilon) {
    for (int64_t b = 0; b < hc; ++b) {
        float total = epsilon;
        for (int64_t a = 0; a < hc; ++a) {
            total += comb[a * hc + b];
        }
        const float inverse = 1.0f / total;
        for (int64_t a = 0; a < hc; ++a) {
            comb[a * hc + b] *= inverse;
        }
    }
}

void divide_rows(float *comb, int64_t hc, float epsilon) {
    for (int64_t a = 0; a < hc; ++a) {
        float total = epsilon;
        for (int64_t b = 0; b < hc; ++b) {
            total += comb[a * hc + b];
        }
        const float inverse = 1.0f / total;
        for (int64_t b = 0; b < hc; ++b) {
            comb[a * hc + b] *= inverse;
        }
    }
}

void softmax_rows(float *comb, int64_t hc, float epsilon) {
    for (int64_t a = 0; a < hc; ++a) {
        float *row = comb + a * hc;
        float  highest = row[0];
        for (int64_t b = 1; b < hc; ++b) {
            highest = row[b] > highest ? row[b] : highest;
        }
        float total = 0.0f;
        for (int64_t b = 0; b < hc; ++b) {
            row[b] = std::exp(row[b] - highest);
            total += row[b];
        }
        for (int64_t b = 0; b < hc; ++b) {
            row[b] = row[b] / total + epsilon;
        }
    }
}

} // namespace

void balance(float *comb, int64_t hc, int64_t iterations, float epsilon) {
    softmax_rows(comb, hc, epsilon);
    divide_columns(comb, hc, epsilon);
    for (int64_t i = 1; i < iterations; ++i) {
        divide_rows(comb, hc, epsilon);
        divide_columns(comb, hc, epsilon);
    }
}

} // namespace ds4::backend::cpu
