// MXNet may keep an array in a layout of oneDNN's, not row by row: weights that a convolution has
// used for inference. What travels must be row by row, as the other workers' is.
#pragma once

#include <mxnet/ndarray.h>

#include <cstring>

namespace byteprophet {

// REQUIRES: called in an operation of MXNet's engine that writes `array`: nobody else may look at
// its layout.
inline void LayOutByRows(mxnet::NDArray* array) {
#if MXNET_USE_MKLDNN == 1
  if (array->IsDefaultData()) return;
  const mxnet::NDArray by_rows = array->Reorder2Default();
  array->InvalidateMKLDNNData();
  std::memcpy(array->data().dptr_, by_rows.data().dptr_,
              array->shape().Size() * mshadow::mshadow_sizeof(array->dtype()));
#endif
}

}  // namespace byteprophet
