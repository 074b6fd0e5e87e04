//! Admission: the kernel names the process that connects, and its descent is checked.

pub(crate) mod lineage;
