#include <memory>

#include "abi/guard.h"
#include "abi/handles.h"

ds4_status ds4_telemetry_open(ds4_telemetry **telemetry, ds4_error *error) {
    using namespace ds4;
    return abi::guarded(error, [&] {
        if (telemetry == nullptr) {
            throw Failure(DS4_E_ARGUMENT, "telemetry is NULL");
        }
        *telemetry = nullptr;
        auto opened = std::make_unique<ds4_telemetry>();
        opened->block = std::make_shared<runtime::Telemetry>();
        *telemetry = opened.release();
    });
}

uint64_t *ds4_telemetry_words(ds4_telemetry *telemetry) {
    return telemetry == nullptr ? nullptr : telemetry->block->words();
}

void ds4_telemetry_close(ds4_telemetry *telemetry) { const std::unique_ptr<ds4_telemetry> owned(telemetry); }
