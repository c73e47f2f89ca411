/* What stands behind the opaque handles. Handles share ownership: a model closed before its sessions, or a telemetry block
 * before its model, is a caller's mistake that must cost memory until the last one goes, and no more. */
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "model/model.h"
#include "model/session.h"
#include "runtime/engine_thread.h"
#include "runtime/file_lock.h"
#include "runtime/telemetry.h"

namespace ds4::abi {

/* A model with the thread that does its work, which also ends it: a device may belong to the thread that opened it. The
 * thread goes last, and is joined by whoever lets go last. */
struct LoadedModel {
    LoadedModel() = default;
    ~LoadedModel() {
        thread.run([&] { model.reset(); });
    }
    LoadedModel(const LoadedModel &) = delete;
    LoadedModel &operator=(const LoadedModel &) = delete;

    runtime::EngineThread         thread;
    std::shared_ptr<model::Model> model;
};

} // namespace ds4::abi

struct ds4_telemetry {
    std::shared_ptr<ds4::runtime::Telemetry> block;
};

struct ds4_model {
    std::shared_ptr<ds4::abi::LoadedModel> loaded;
};

struct ds4_session {
    ds4_session() = default;
    ~ds4_session() {
        loaded->thread.run([&] { session.reset(); });
    }
    ds4_session(const ds4_session &) = delete;
    ds4_session &operator=(const ds4_session &) = delete;

    std::shared_ptr<ds4::abi::LoadedModel> loaded;
    std::unique_ptr<ds4::model::Session>   session;
};

struct ds4_lock {
    ds4::runtime::FileLock file;
};
