#pragma once

/// \file
/// What stands in front of the allocators of a test program, see allocations.cpp.

namespace lazyllm::test {

/// Allocations so far.
long allocations();

/// Lets the allocation after the next `count` ones fail, once; a negative count: none.
void fail_allocation_after(long count);

/// Whether Eigen's allocations are seen, too, and not only those of operator new.
bool sees_malloc();

}  // namespace lazyllm::test
