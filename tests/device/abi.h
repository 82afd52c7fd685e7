// Compares a declaration of ours with NVIDIA's: types that are passed in the same way are the same.
// An enumeration is its integer, a handle is a pointer to something unknown, a structure its size.
#pragma once

#include <cstddef>
#include <type_traits>

namespace abi {

template <size_t kBytes>
struct Structure {};
struct Unknown {};

template <typename T>
concept IsComplete = requires { sizeof(T); };

template <typename T>
struct Of {
  using Type = T;
};
template <typename T>
  requires std::is_enum_v<T>
struct Of<T> {
  using Type = std::underlying_type_t<T>;
};
template <typename T>
  requires(std::is_class_v<T> && IsComplete<T>)
struct Of<T> {
  using Type = Structure<sizeof(T)>;
};
template <typename T>
  requires(std::is_class_v<T> && !IsComplete<T>)
struct Of<T> {
  using Type = Unknown;
};
template <typename T>
struct Of<T*> {
  using Type = typename Of<T>::Type*;
};
template <typename Result, typename... Arguments>
struct Of<Result (*)(Arguments...)> {
  using Type = typename Of<Result>::Type (*)(typename Of<Arguments>::Type...);
};

template <typename Ours, typename Theirs>
inline constexpr bool kSame = std::is_same_v<typename Of<Ours>::Type, typename Of<Theirs>::Type>;

// In the file that includes both, ours within a namespace `ours`.
#define SAME_CALL(name)                                               \
  static_assert(abi::kSame<decltype(&ours::name), decltype(&::name)>, \
                #name " is declared otherwise by NVIDIA");
#define SAME_VALUE(name)                                                    \
  static_assert(static_cast<long>(ours::name) == static_cast<long>(::name), \
                #name " has another value in NVIDIA's header");

}  // namespace abi
