#pragma once

/// \file
/// Which instruction sets the host's own kernels may use. Each is compiled into every build; which one runs is chosen
/// when the program runs.
namespace llama {

/// Those with kernels of their own. Each includes the ones before it, but avx512_bf16 not avx512_vnni. The baseline is
/// what the build's compiler takes for granted.
enum class Isa { baseline, avx2, avx512, avx512_vnni, avx512_bf16 };

/// Whether this processor has it. Where the build has oneDNN, its variable ONEDNN_MAX_CPU_ISA leaves out the better
/// ones here, too.
bool usable(Isa isa);

/// Whether oneDNN multiplies with AMX; false in a build without it.
bool onednn_has_amx();

/// The name of the best one that attention and products run with, for figures: that of `block_kernels()`, or `amx`
/// where oneDNN takes AMX for its products.
const char* best_isa();

}  // namespace llama
