//! The laboratory: pages from real processes, and what the allocators make of them.
