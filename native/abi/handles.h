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

/* A model with the thread that does its work. The thread goes last, and is joined by whoever lets go last. */
struct LoadedModel {
    runtime::EngineThread        thread;
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
    std::shared_ptr<ds4::abi::LoadedModel>     loaded; /* outlives the session below */
    std::unique_ptr<ds4::model::Session>       session;
};

struct ds4_lock {
    ds4::runtime::FileLock file;
};
