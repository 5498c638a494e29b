// Intel AMX for oneDNN on a processor without it: a library that is loaded before all others (LD_PRELOAD).
// Its tile instructions are not defined there, so each of them ends in SIGILL, and the handler does what it should
// have done, as in Intel's manual. oneDNN's instructions `cpuid` become undefined ones when the program starts; they
// are answered with AMX added. Their places are read from the file AMX_CPUID_PLACES: offsets in hexadecimal. No time
// can be measured in this way.

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

using Byte = std::uint8_t;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "AMX emulation: %s\n", what);
  std::abort();
}

template <class To>
To load(const void* from) {
  To value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class From>
void store(void* to, From value) {
  std::memcpy(to, &value, sizeof(value));
}

/// A place in memory that an instruction or the loader names.
template <class T, class Place>
T* at_place(Place place) {
  return reinterpret_cast<T*>(place);  // NOLINT(performance-no-int-to-ptr)
}

// ---- Tiles

constexpr int tile_count = 8;
constexpr int tile_rows = 16;
constexpr int row_bytes = 64;

struct Tiles {
  Byte configuration[64];  // palette, first row, 14 unused bytes, bytes of a row of each tile, rows of each tile
  Byte data[tile_count][tile_rows][row_bytes];

  int rows(int tile) const { return configuration[48 + tile]; }
  int bytes(int tile) const { return load<std::uint16_t>(configuration + 16 + 2 * tile); }

  void configure(const Byte* from) {
    if (from[0] > 1 || (from[0] == 1 && from[1] != 0)) fail("a configuration that is not known");
    std::memset(this, 0, sizeof(*this));
    if (from[0] == 1) std::memcpy(configuration, from, sizeof(configuration));
  }

  void check(int tile) const {
    if (configuration[0] != 1 || rows(tile) == 0) fail("a tile that is not configured");
  }

  void read(int tile, const Byte* from, std::int64_t stride) {
    check(tile);
    std::memset(data[tile], 0, sizeof(data[tile]));
    for (int row = 0; row < rows(tile); ++row) {
      std::memcpy(data[tile][row], from + row * stride, static_cast<std::size_t>(bytes(tile)));
    }
  }

  void write(int tile, Byte* to, std::int64_t stride) const {
    check(tile);
    for (int row = 0; row < rows(tile); ++row) {
      std::memcpy(to + row * stride, data[tile][row], static_cast<std::size_t>(bytes(tile)));
    }
  }

  /// `add(c, a, b, columns)` adds the product of row a of four bytes for each row of `b` to row c.
  template <class Add>
  void multiply(int c, int a, int b, const Add& add) {
    for (const int tile : {c, a, b}) check(tile);
    if (c == a || c == b || a == b || rows(a) != rows(c) || bytes(b) != bytes(c) || bytes(a) != 4 * rows(b)) {
      fail("tiles that do not fit");
    }
    for (int row = 0; row < rows(c); ++row) add(data[c][row], data[a][row], data[b], rows(b), bytes(c) / 4);
  }
};
thread_local Tiles tiles [[gnu::tls_model("initial-exec")]];

std::atomic<long> bfloat16_products, byte_products;

/// What is too small to be normal is 0.
float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

float widen(const Byte* bfloat16) {
  const std::uint32_t bits = std::uint32_t{load<std::uint16_t>(bfloat16)} << 16;
  return flushed(load<float>(&bits));
}

/// Elements of even and of odd number are summed up apart, and both sums are then added to c.
void add_bfloat16(Byte* c, const Byte* a, const Byte (*b)[row_bytes], int depth, int columns) {
  for (int column = 0; column < columns; ++column) {
    float sums[2] = {};
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 2; ++i) {
        sums[i] = flushed(std::fma(widen(a + 4 * k + 2 * i), widen(b[k] + 4 * column + 2 * i), sums[i]));
      }
    }
    store(c + 4 * column, flushed(flushed(load<float>(c + 4 * column)) + flushed(sums[0] + sums[1])));
  }
}

template <class A, class B>
void add_bytes(Byte* c, const Byte* a, const Byte (*b)[row_bytes], int depth, int columns) {
  for (int column = 0; column < columns; ++column) {
    auto sum = load<std::int32_t>(c + 4 * column);
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 4; ++i) sum += static_cast<A>(a[4 * k + i]) * static_cast<B>(b[k][4 * column + i]);
    }
    store(c + 4 * column, sum);
  }
}

// ---- Instructions

constexpr std::array registers = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

enum Prefix { none, x66, xf3, xf2 };

/// An instruction of AMX: C4, two bytes of prefix, operation, operands, and where they are in memory an address.
struct Instruction {
  Prefix prefix;
  int operation, first, second, third;
  bool in_memory = false;
  Byte* address = nullptr;
  std::int64_t stride = 0;
  const Byte* next;

  Instruction(const Byte* at, const greg_t* values) {
    if (at[0] != 0xc4 || (at[1] & 31) != 2 || (at[2] & 0x84) != 0) fail("an undefined instruction that is not AMX");
    prefix = static_cast<Prefix>(at[2] & 3);
    operation = at[3];
    const int mode = at[4] >> 6;
    first = at[4] >> 3 & 7;
    second = at[4] & 7;
    third = ~at[2] >> 3 & 15;
    next = at + 5;
    in_memory = mode != 3;
    if (!in_memory) return;
    const auto value = [&](int number, int extension) {
      return values[registers[static_cast<std::size_t>((at[1] & extension) != 0 ? number : number + 8)]];
    };
    const bool indexed = second == 4;
    const int base = indexed ? *next & 7 : second;
    if (mode == 0 && base == 5) fail("an address without a base");
    std::int64_t place = value(base, 0x20);
    if (indexed) {
      const int index = *next >> 3 & 7;
      if (index != 4 || (at[1] & 0x40) == 0) stride = value(index, 0x40) << (*next >> 6);
      ++next;
    }
    if (mode == 1) place += static_cast<std::int8_t>(*next);
    if (mode == 2) place += load<std::int32_t>(next);
    next += mode == 1 ? 1 : mode == 2 ? 4 : 0;
    if (operation == 0x49) place += stride;
    address = at_place<Byte>(place);
  }

  void run() const {
    if (operation == 0x49 && in_memory && prefix == none) return tiles.configure(address);
    if (operation == 0x49 && !in_memory && prefix == none) return tiles.configure(std::array<Byte, 64>().data());
    if (operation == 0x49 && !in_memory && prefix == xf2) {
      std::memset(tiles.data[first], 0, sizeof(tiles.data[first]));
      return;
    }
    if (operation == 0x4b && (prefix == xf2 || prefix == x66)) return tiles.read(first, address, stride);
    if (operation == 0x4b && prefix == xf3) return tiles.write(first, address, stride);
    if (operation == 0x5c && prefix == xf3) {
      ++bfloat16_products;
      return tiles.multiply(first, second, third, add_bfloat16);
    }
    if (operation == 0x5e) {
      ++byte_products;
      constexpr std::array add = {add_bytes<Byte, Byte>, add_bytes<Byte, std::int8_t>, add_bytes<std::int8_t, Byte>,
                                  add_bytes<std::int8_t, std::int8_t>};
      return tiles.multiply(first, second, third, add[prefix]);
    }
    fail("an instruction of AMX that is not known");
  }
};

/// What a Sapphire Rapids answers, where it matters to oneDNN; the rest is this processor's.
void answer_cpuid(greg_t* values) {
  const auto leaf = static_cast<std::uint32_t>(values[REG_RAX]), part = static_cast<std::uint32_t>(values[REG_RCX]);
  std::uint32_t a, b, c, d;
  asm volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(leaf), "2"(part));
  const auto put = [&](std::uint32_t in_a, std::uint32_t in_b, std::uint32_t in_c, std::uint32_t in_d) {
    a = in_a, b = in_b, c = in_c, d = in_d;
  };
  const auto cache = [&](std::uint32_t kind, std::uint32_t ways, std::uint32_t sets) {
    put(kind | 1u << 26, (ways - 1) << 22 | 63, sets - 1, 0);
  };
  if (leaf == 0) put(0x1e, 0x756e6547, 0x6c65746e, 0x49656e69);  // GenuineIntel
  if (leaf == 4) {
    put(0, 0, 0, 0);
    if (part == 0) cache(0x121, 12, 64);
    if (part == 1) cache(0x122, 8, 64);
    if (part == 2) cache(0x143, 16, 2048);
    if (part == 3) cache(0x4163, 15, 32768);
  }
  if (leaf == 7 && part == 0) {
    d |= 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, bytes
    d |= 1u << 23;                        // AVX512-FP16: oneDNN 3 asks for it, and runs none of it on these types
  }
  if (leaf == 7 && part == 1) a |= 1u << 4;  // AVX-VNNI, in the same way
  if (leaf == 0x1d) part == 0 ? put(1, 0, 0, 0) : put(1024u << 16 | 8192, tile_count << 16 | row_bytes, tile_rows, 0);
  if (leaf == 0x1e) put(0, row_bytes << 8 | tile_rows, 0, 0);
  values[REG_RAX] = a, values[REG_RBX] = b, values[REG_RCX] = c, values[REG_RDX] = d;
}

void on_undefined_instruction(int, siginfo_t*, void* context) {
  greg_t* const values = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* const at = at_place<const Byte>(values[REG_RIP]);
  if (at[0] == 0x0f && at[1] == 0x0b) {
    answer_cpuid(values);
    values[REG_RIP] += 2;
  } else {
    const Instruction instruction(at, values);
    instruction.run();
    values[REG_RIP] = reinterpret_cast<greg_t>(instruction.next);
  }
}

// ---- Start and end

int make_cpuid_undefined(dl_phdr_info* library, std::size_t, void* places_file) {
  if (std::string_view(library->dlpi_name).find("libdnnl") == std::string_view::npos) return 0;
  std::FILE* const places = std::fopen(static_cast<const char*>(places_file), "r");
  if (places == nullptr) fail("AMX_CPUID_PLACES is no file");
  constexpr std::uintptr_t page = 4096;
  for (unsigned long place; std::fscanf(places, "%lx", &place) == 1;) {
    auto* const at = at_place<Byte>(library->dlpi_addr + place);
    auto* const first = at_place<void>((library->dlpi_addr + place) / page * page);
    if (at[0] != 0x0f || at[1] != 0xa2) fail("AMX_CPUID_PLACES is of another library");
    mprotect(first, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC);
    at[1] = 0x0b;
  }
  std::fclose(places);
  return 0;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// The first of all libraries: oneDNN looks at the processor in its own.
[[gnu::constructor]] void begin(int, char**, char** environment) {
  struct sigaction action = {};
  action.sa_sigaction = on_undefined_instruction;
  action.sa_flags = SA_SIGINFO;
  next<decltype(sigaction)>("sigaction")(SIGILL, &action, nullptr);
  constexpr std::string_view variable = "AMX_CPUID_PLACES=";
  for (; *environment != nullptr; ++environment) {
    if (std::string_view(*environment).starts_with(variable)) {
      dl_iterate_phdr(make_cpuid_undefined, *environment + variable.size());
    }
  }
}

[[gnu::destructor]] void end() {
  std::fprintf(stderr, "AMX emulation: %ld products of bfloat16, %ld of bytes\n", bfloat16_products.load(),
               byte_products.load());
}

}  // namespace

/// Others cannot take SIGILL away, as doctest does.
extern "C" int sigaction(int number, const struct sigaction* action, struct sigaction* before) noexcept {
  if (number != SIGILL) return next<decltype(sigaction)>("sigaction")(number, action, before);
  if (before != nullptr) *before = {};
  return 0;
}

/// The kernel's permission to use tiles, which oneDNN asks for.
extern "C" long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  long values[6];
  for (long& value : values) value = va_arg(list, long);
  va_end(list);
  constexpr long get_permission = 0x1022, request_permission = 0x1023;
  if (number == SYS_arch_prctl && values[0] == get_permission) {
    *at_place<unsigned long>(values[1]) = 3ul << 17;
    return 0;
  }
  if (number == SYS_arch_prctl && values[0] == request_permission) return 0;
  return next<long(long, ...)>("syscall")(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
