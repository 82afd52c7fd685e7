// Turning a sum into an average: what patch 0048 calls.
#pragma once

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/extension.h>

namespace byteprophet {

// Divides `sum` in place by `ranks`; integers are rounded down. It is divided when this returns,
// also on a GPU, where it waits for no other stream: nothing else may be using `sum`.
inline void Divide(::torch::Tensor sum, int ranks) {
  const auto divide = [&] {
    if (isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
      sum.floor_divide_(ranks);
    } else {
      sum.div_(ranks);
    }
  };
  if (sum.is_cpu()) {
    divide();
    return;
  }
  const c10::impl::VirtualGuardImpl device(sum.device().type());
  const c10::Stream stream = device.getStreamFromGlobalPool(sum.device(), /*isHighPriority=*/true);
  const c10::StreamGuard guard(stream);
  divide();
  stream.synchronize();
}

}  // namespace byteprophet
