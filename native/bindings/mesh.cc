// The exchange between ranks. Nothing of Python is in it: every call that does something runs
// without the GIL, and the mesh's own threads never want it.
#include "exchange/mesh.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteprophet {
namespace {

using WithoutGil = nb::call_guard<nb::gil_scoped_release>;
using Addresses = std::vector<std::pair<uint64_t, uint64_t>>;
using Weights = std::vector<uint64_t>;

std::chrono::nanoseconds Ns(double time_s) {
  // No number is no time, either.
  const double limited_s = time_s > 0 ? std::min(time_s, 1e6) : 0.0;
  return std::chrono::nanoseconds(static_cast<int64_t>(limited_s * 1e9));
}

// exchange::Mesh in the process that made it. A child made by fork has none of its threads: there
// the object goes without being ended, and its sockets can be closed. While a child has them, no
// other rank sees the end of this process.
class Mesh {
 public:
  Mesh(int rank, const std::vector<int>& sockets, size_t frame_bytes, double vanished_after_s)
      : mesh_(std::make_unique<exchange::Mesh>(
            rank, sockets, frame_bytes,
            std::chrono::duration_cast<std::chrono::milliseconds>(Ns(vanished_after_s)))) {}
  ~Mesh() {
    if (getpid() != process_) (void)mesh_.release();
  }

  void Reduce(uint64_t operation, const Addresses& tensors, const std::string& dtype, bool average,
              int64_t position, const Weights& weights) {
    Begin(exchange::Kind::kReduce, operation, tensors, dtype, average, position, weights);
  }
  void Gather(uint64_t operation, const Addresses& tensors, const std::string& dtype,
              int64_t position, const Weights& weights) {
    Begin(exchange::Kind::kGather, operation, tensors, dtype, false, position, weights);
  }
  void AllReduce(uint64_t operation, uint64_t gather, const Addresses& tensors,
                 const std::string& dtype, bool average, std::pair<int64_t, int64_t> positions,
                 const Weights& weights, bool tells_sum) {
    Begin(exchange::Kind::kReduce, operation, tensors, dtype, average, positions.first, weights,
          exchange::Mesh::Then{gather, positions.second, tells_sum});
  }
  std::vector<exchange::Over> Completed(double timeout_s) {
    return mesh_->Completed(Ns(timeout_s));
  }
  std::vector<int> Missing(uint64_t operation) const { return mesh_->Missing(operation); }
  std::pair<exchange::Traffic, exchange::Traffic> Traffic() const {
    return {mesh_->sent(), mesh_->received()};
  }
  void Close(double timeout_s) {
    if (getpid() == process_) mesh_->Close(Ns(timeout_s));
  }
  void CloseInChild() {
    if (getpid() != process_) mesh_->CloseInChild();
  }

 private:
  void Begin(exchange::Kind kind, uint64_t operation, const Addresses& tensors,
             const std::string& dtype, bool average, int64_t position, const Weights& weights,
             std::optional<exchange::Mesh::Then> then = std::nullopt) {
    std::vector<exchange::Tensor> known;
    known.reserve(tensors.size());
    for (const auto& [address, elements] : tensors)
      known.push_back({reinterpret_cast<std::byte*>(address), elements});
    mesh_->Begin(kind, operation, known, exchange::DtypeNamed(dtype), average, position, weights,
                 then);
  }

  const pid_t process_ = getpid();
  std::unique_ptr<exchange::Mesh> mesh_;
};

}  // namespace

void DefineMesh(nb::module_& module) {
  nb::class_<exchange::Traffic>(module, "Traffic")
      .def_ro("payload_bytes", &exchange::Traffic::payload_bytes)
      .def_ro("frames", &exchange::Traffic::frames)
      .def_ro("busy_ns", &exchange::Traffic::busy_ns)
      .def_ro("carried_bytes", &exchange::Traffic::carried_bytes)
      .def_ro("carrying_ns", &exchange::Traffic::carrying_ns);
  nb::class_<Mesh>(module, "Mesh")
      .def_static("dtypes",
                  [] {
                    std::vector<std::string> names;
                    for (const auto& facts : exchange::kDtypes) names.emplace_back(facts.name);
                    return names;
                  })
      .def(nb::init<int, const std::vector<int>&, size_t, double>(), "rank"_a, "sockets"_a,
           "frame_bytes"_a = size_t{1} << 18,
           "vanished_after_s"_a = std::chrono::duration<double>(exchange::kVanishedAfter).count())
      .def("reduce", &Mesh::Reduce, "operation"_a, "tensors"_a, "dtype"_a, "average"_a,
           "position"_a, "weights"_a = Weights(), WithoutGil())
      .def("gather", &Mesh::Gather, "operation"_a, "tensors"_a, "dtype"_a, "position"_a,
           "weights"_a = Weights(), WithoutGil())
      .def("all_reduce", &Mesh::AllReduce, "operation"_a, "gather"_a, "tensors"_a, "dtype"_a,
           "average"_a, "positions"_a, "weights"_a = Weights(), "tells_sum"_a = false, WithoutGil())
      .def("completed", &Mesh::Completed, "timeout_s"_a, WithoutGil())
      .def("missing", &Mesh::Missing, "operation"_a, WithoutGil())
      .def("traffic", &Mesh::Traffic, WithoutGil())
      .def("close", &Mesh::Close, "timeout_s"_a, WithoutGil())
      .def("close_in_child", &Mesh::CloseInChild);
}

}  // namespace byteprophet
