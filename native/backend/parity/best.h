#pragma once

#include "backend/parity/matrices.h"

namespace ds4::backend::parity {

struct BestShape {
    int64_t vocab, count;
    float   grid; /* logits are multiples of 1 / grid, so that many are equal; 0: any numbers */
    Slow    slow = Slow::nowhere;

    std::string name() const {
        return "best " + std::to_string(count) + " of " + std::to_string(vocab) +
               (grid != 0.0f ? " in steps of 1/" + std::to_string(static_cast<int>(grid)) : "");
    }
};

/* One, the server's 40 and 1024, and all of them; fewer logits than a block takes and many times as many. */
constexpr BestShape kBestShapes[] = {
    {1, 1, 50},       {7, 1, 50},         {7, 7, 50},         {512, 1, 50},        {512, 40, 50},       {512, 512, 50},
    {20000, 1, 50},   {20000, 40, 50},    {20000, 1024, 50},  {20000, 20000, 50},  {20000, 3, 10},      {20000, 1024, 10},
    {1, 1, 0},        {7, 1, 0},          {7, 7, 0},          {512, 1, 0},         {512, 40, 0},        {512, 512, 0},
    {4097, 1, 0},     {4097, 40, 0},      {4097, 1024, 0},    {20000, 1, 0},       {20000, 40, 0},      {20000, 1024, 0},
    {129280, 1, 0},   {129280, 40, 0},    {129280, 1024, 0},  {300, 300, 0},       {4096, 4096, 0},     {5000, 5000, 0},
};

struct BestFound {
    int32_t              finite = -1;
    std::vector<float>   logits;
    std::vector<int32_t> ids;

    std::vector<float> all() const {
        std::vector<float> values = logits;
        append(values, ids);
        values.push_back(static_cast<float>(finite));
        return values;
    }
};

inline BestFound best(Backend &backend, const std::vector<float> &logits, int64_t count) {
    const auto placed = place(backend, logits);
    const auto logit = room<float>(backend, static_cast<size_t>(count));
    const auto ids = room<int32_t>(backend, static_cast<size_t>(count));
    const auto finite = place(backend, std::vector<int32_t>{-1});
    backend.ops->best({static_cast<int64_t>(logits.size()), count, placed.get(), logit.get(), ids.get(), finite.get()});
    return {finite.read()[0], logit.read(), ids.read()};
}

struct BestCase {
    BestShape          shape;
    std::vector<float> logits;

    explicit BestCase(const BestShape &of) : shape(of) {
        Random random(81);
        logits = random.normals(shape.vocab, shape.grid != 0.0f ? 1.0f : 5.0f);
        for (float &logit : logits) {
            logit = shape.grid != 0.0f ? std::round(logit * shape.grid) / shape.grid : logit;
        }
    }

    BestFound run(Backend &backend) const { return best(backend, logits, shape.count); }
};

} // namespace ds4::backend::parity
