// The device that this process uses, for good: chosen at its first call.
#pragma once

#include "device_choice.h"

namespace byteprophet {

// BytePS initialises its device before anything else. Where what is wanted cannot be had, that ends
// the process with one line and exit status 2. Any thread may call.
const Device& UsedDevice();

}  // namespace byteprophet
