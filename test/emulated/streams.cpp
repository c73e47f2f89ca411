#include "emulated/streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "emulated/calls.h"

namespace ds4::emulated {

thread_local unsigned captures = 0;
uint64_t              work_count = 0, graph_count = 0;

namespace {

std::vector<std::shared_ptr<Queue>> queues;
std::optional<uint64_t>             works_left; /* before the streams stop */

void give(Queue &queue, Work work) {
    queue.waiting.push_back(std::move(work));
    ++queue.issued;
}

/* Of the works after which the streams stop. */
void count_down() {
    if (works_left && *works_left > 0) {
        --*works_left;
    }
}

void do_until(Queue &queue, uint64_t place) {
    while (queue.done < place && !have_stopped()) {
        struct Counted {
            Queue &queue;
            ~Counted() { /* also what throws, as a kernel whose lanes miss each other does */
                if (!have_stopped()) {
                    ++queue.done;
                    count_down();
                }
            }
        } const counted{queue};
        const Work work = std::move(queue.waiting.front());
        queue.waiting.pop_front();
        memory.open();
        work();
    }
}

/* To the host, once no work is left that would open it again. */
void close_memory() {
    if (std::ranges::all_of(queues, [](const auto &queue) { return queue->waiting.empty(); })) {
        memory.close();
    }
}

} // namespace

void stop_after(uint64_t works) {
    works_left = works;
}

void go_on() {
    works_left.reset();
}

bool have_stopped() {
    return works_left == 0;
}

void must_not_hang(const char *call) {
    const bool is_done = std::ranges::all_of(queues, [](const auto &queue) { return queue->done == queue->issued; });
    if (have_stopped() && !is_done) {
        std::fprintf(stderr, "emulated card: %s waits for a card that has stopped\n", call);
        std::abort();
    }
}

bool is_captured(gpuStream_t stream) {
    return stream != nullptr && stream->recorded != nullptr;
}

void enqueue(gpuStream_t stream, Work work) {
    ++work_count;
    if (is_captured(stream)) {
        stream->recorded->works.push_back(std::move(work));
    } else if (stream != nullptr) {
        give(*stream->queue, std::move(work));
    } else {
        memory.open();
        work();
    }
}

void do_now(const Work &work) {
    ++work_count;
    memory.open();
    work();
    count_down();
}

void do_all(gpuStream_t stream) {
    if (stream == nullptr) {
        do_all();
        return;
    }
    do_until(*stream->queue, stream->queue->issued);
    close_memory();
}

void do_all() {
    for (const auto &queue : queues) {
        do_until(*queue, queue->issued);
    }
    close_memory();
}

void drop_all() {
    for (const auto &queue : queues) {
        queue->waiting.clear();
        queue->done = queue->issued;
    }
}

} // namespace ds4::emulated

using namespace ds4::emulated;

gpuError_t gpuStreamCreateWithFlags(gpuStream_t *stream, unsigned) {
    return call_apart("gpuStreamCreateWithFlags", [&] {
        *stream = new Stream;
        queues.push_back((*stream)->queue);
        return gpuSuccess;
    });
}

gpuError_t gpuStreamDestroy(gpuStream_t stream) {
    return call("gpuStreamDestroy", [&] {
        do_all(stream);
        must_not_hang("gpuStreamDestroy");
        std::erase(queues, stream->queue);
        captures -= stream->recorded != nullptr ? 1 : 0;
        delete stream;
        return gpuSuccess;
    });
}

/* Who asks often enough sees the stream come nearer. */
gpuError_t gpuStreamQuery(gpuStream_t stream) {
    return call_apart("gpuStreamQuery", [&] {
        if (stream->queue->done == stream->queue->issued) {
            close_memory();
            return gpuSuccess;
        }
        do_until(*stream->queue, stream->queue->done + 1);
        return gpuErrorNotReady;
    });
}

/* For the event's place of now: recorded anew, it does not hold up those who wait already. */
gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event, unsigned) {
    return call("gpuStreamWaitEvent", [&] {
        if (is_captured(stream)) {
            return gpuErrorStreamCaptureUnsupported;
        }
        if (event->queue != nullptr) {
            give(*stream->queue, [from = *event] { do_until(*from.queue, from.place); });
        }
        return gpuSuccess;
    });
}

gpuError_t gpuEventCreateWithFlags(gpuEvent_t *event, unsigned) {
    return call_apart("gpuEventCreateWithFlags", [&] {
        *event = new Event;
        return gpuSuccess;
    });
}

gpuError_t gpuEventDestroy(gpuEvent_t event) {
    return call("gpuEventDestroy", [&] {
        delete event;
        return gpuSuccess;
    });
}

gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
    return call("gpuEventRecord", [&] {
        if (is_captured(stream)) {
            return gpuErrorStreamCaptureUnsupported;
        }
        *event = {stream->queue, stream->queue->issued};
        return gpuSuccess;
    });
}

gpuError_t gpuEventQuery(gpuEvent_t event) {
    return call_apart("gpuEventQuery", [&] {
        if (event->queue == nullptr || event->queue->done >= event->place) {
            return gpuSuccess;
        }
        do_until(*event->queue, event->queue->done + 1);
        return gpuErrorNotReady;
    });
}

gpuError_t gpuStreamBeginCapture(gpuStream_t stream, gpuStreamCaptureMode) {
    return call_apart("gpuStreamBeginCapture", [&] {
        stream->recorded = std::make_unique<Graph>();
        ++captures;
        return gpuSuccess;
    });
}

gpuError_t gpuStreamEndCapture(gpuStream_t stream, gpuGraph_t *graph) {
    std::unique_ptr<Graph> recorded = std::move(stream->recorded); /* ends, also when the call fails */
    captures -= recorded != nullptr ? 1 : 0;
    return call("gpuStreamEndCapture", [&] {
        *graph = recorded.release();
        return *graph != nullptr ? gpuSuccess : gpuErrorInvalidValue;
    });
}

gpuError_t gpuGraphInstantiateWithFlags(gpuGraphExec_t *runnable, gpuGraph_t graph, unsigned long long) {
    return call_apart("gpuGraphInstantiateWithFlags", [&] {
        *runnable = new Graph(*graph);
        return gpuSuccess;
    });
}

gpuError_t gpuGraphDestroy(gpuGraph_t graph) {
    return call("gpuGraphDestroy", [&] {
        delete graph;
        return gpuSuccess;
    });
}

gpuError_t gpuGraphExecDestroy(gpuGraphExec_t runnable) {
    return call("gpuGraphExecDestroy", [&] {
        delete runnable;
        return gpuSuccess;
    });
}

gpuError_t gpuGraphLaunch(gpuGraphExec_t runnable, gpuStream_t stream) {
    return call("gpuGraphLaunch", [&] {
        ++graph_count;
        enqueue(stream, [graph = *runnable] {
            for (const Work &work : graph.works) {
                work();
            }
        });
        return gpuSuccess;
    });
}
