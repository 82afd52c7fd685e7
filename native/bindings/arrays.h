// Arrays between Python and C++: views of what comes in, owners of what goes out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace byteprophet {

template <typename T>
using In = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> SpanOf(const In<T>& array) {
  return {array.data(), array.size()};
}

// A numpy array of this shape, which keeps the values.
template <typename T>
nanobind::object Array(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  nanobind::capsule owner(owned.get(),
                          [](void* kept) noexcept { delete static_cast<std::vector<T>*>(kept); });
  (void)owned.release();
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(data, shape, owner));
}

template <typename T>
nanobind::object Array(std::vector<T> values) {
  const size_t size = values.size();
  return Array(std::move(values), {size});
}

}  // namespace byteprophet
