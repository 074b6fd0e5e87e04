//! The tests of the library in one program, which is linked once. Tests that need a process of
//! their own are beside this folder.

mod backing_extents;
mod common;
mod counters;
mod golden_kernel_6_1;
mod golden_kernel_6_18;
mod golden_lzo;
mod index_model;
mod lzo;
mod object_header;
mod parts;
mod public_face;
mod recompress;
mod restore_into;
mod snapshot;
mod tenants;
mod units;
mod values;
mod when_full;
mod zpool_exhaustive;
mod zpool_model;
mod zpool_packed;
mod zsmalloc_classes;
mod zsmalloc_compaction;
mod zsmalloc_mapping;
mod zswap_model;
mod zswap_shrinker;
mod zswap_staged;
mod zswap_tier;
