// A simulated job (prophet/engine/job.h) as a graph: the same model, said in operations.
#pragma once

#include <cstdint>
#include <vector>

#include "graphs.h"
#include "tests/engine/jobs.h"

namespace prophet::graph {

// Where a partition's way in one iteration is in the graph.
struct Way {
  uint64_t key = 0;
  int32_t push = -1;  // its row among gated operations is `row`
  size_t row = 0;
  int32_t acknowledgement = -1;
  int32_t pull = -1;
};

struct JobGraph {
  OwnedGraph graph;
  // By worker, then iteration.
  std::vector<std::vector<std::vector<Way>>> ways;
  std::vector<std::vector<int32_t>> begins;  // marks, of no duration
};

// `job` has BytePS' transport as we patch it: neither stock_transport nor barrier.
JobGraph GraphOf(const engine::OwnedJob& job);

}  // namespace prophet::graph
