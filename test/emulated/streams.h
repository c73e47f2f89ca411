/* Streams that do their work as late as they may: when someone waits for it. What a program forgets to wait for then happens
 * in the wrong order every time, not once in a thousand runs. */
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "emulated/runtime.h"

namespace ds4::emulated {

using Work = std::function<void()>;

/* What a stream was given and has not done. */
struct Queue {
    std::deque<Work> waiting;
    uint64_t         issued = 0, done = 0;
};

struct Graph {
    std::vector<Work> works;
};

struct Stream {
    std::shared_ptr<Queue> queue = std::make_shared<Queue>();
    std::unique_ptr<Graph> recorded; /* while the stream is captured */
};

/* A place in a stream: so many works are in front of it. */
struct Event {
    std::shared_ptr<Queue> queue; /* nullptr: never recorded */
    uint64_t               place = 0;
};

/* Later, or, while the stream is captured, at each launch of the graph. Without a stream at once. */
void enqueue(gpuStream_t stream, Work work);
/* What the host itself waits for. */
void do_now(const Work &work);
/* Everything of one stream, of all. */
void do_all(gpuStream_t stream);
void do_all();
/* A lost card does nothing any more. */
void drop_all();
/* After so many more works the streams stop where they are, till the end of it. */
void stop_after(uint64_t works);
void go_on();
bool have_stopped();
bool is_captured(gpuStream_t stream);

/* Calls so far that put work on a stream; of them, launches of graphs. */
extern uint64_t work_count, graph_count;

} // namespace ds4::emulated
