//! The codes of errors, and the code of each error of the store.

use std::io;

use uzswap::backing::BackingError;
use uzswap::values::ValueError;
use uzswap::zswap::snapshot::{RestoreError, SnapshotError, SnapshotFault};
use uzswap::zswap::{BuildError, LoadError, StoreError, TenantError};

/// How a call ended. Later versions may have more codes; none changes its number.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The call did what it is for.
    UzOk = 0,
    /// There is nothing under this key or name. No failure: uz_last_error() is as it was.
    UzNotFound = 1,
    /// A pointer is NULL or not aligned, a length or key is too large, or a text is not UTF-8.
    UzArgument = -1,
    /// No option or statistic has this name.
    UzName = -2,
    /// The option cannot have this value, or not together with the others.
    UzValue = -3,
    /// The caller's buffer is too small.
    UzBuffer = -4,
    /// The store is at its limit, and nothing can make room.
    UzLimit = -5,
    /// The tenant, or one above it, is at its limit.
    UzTenantLimit = -6,
    /// There is no such tenant, or it cannot be made or removed.
    UzTenant = -7,
    /// The page does not compress enough, and the options refuse such pages.
    UzIncompressible = -8,
    /// The compressor failed.
    UzCompressor = -9,
    /// The machine gave no memory.
    UzNoMemory = -10,
    /// The kernel refused an operation on a file, or a thread.
    UzIo = -11,
    /// The store is at its limit, and the file behind it has no free block.
    UzFileFull = -12,
    /// The page is damaged; its entry stays.
    UzCorrupt = -13,
    /// The file is no snapshot, is damaged, or needs a compressor that is not in this library.
    UzSnapshot = -14,
    /// An error that has no code of its own.
    UzOther = -15,
    /// A defect of the library ended the call, which may have done a part of its work.
    UzPanic = -16,
}

impl Status {
    const ALL: [Status; 18] = [
        Status::UzOk,
        Status::UzNotFound,
        Status::UzArgument,
        Status::UzName,
        Status::UzValue,
        Status::UzBuffer,
        Status::UzLimit,
        Status::UzTenantLimit,
        Status::UzTenant,
        Status::UzIncompressible,
        Status::UzCompressor,
        Status::UzNoMemory,
        Status::UzIo,
        Status::UzFileFull,
        Status::UzCorrupt,
        Status::UzSnapshot,
        Status::UzOther,
        Status::UzPanic,
    ];

    /// The status of a number that C gave.
    pub(crate) fn of(code: i32) -> Option<Status> {
        Status::ALL.into_iter().find(|status| *status as i32 == code)
    }

    pub(crate) fn text(self) -> &'static std::ffi::CStr {
        match self {
            Status::UzOk => c"done",
            Status::UzNotFound => c"not found",
            Status::UzArgument => c"an argument is NULL, not aligned, too large or not UTF-8",
            Status::UzName => c"unknown name",
            Status::UzValue => c"value out of range",
            Status::UzBuffer => c"buffer too small",
            Status::UzLimit => c"the store is at its limit",
            Status::UzTenantLimit => c"the tenant is at its limit",
            Status::UzTenant => c"no such tenant, or it cannot be made or removed",
            Status::UzIncompressible => c"the page does not compress enough",
            Status::UzCompressor => c"the compressor failed",
            Status::UzNoMemory => c"no memory",
            Status::UzIo => c"input or output failed",
            Status::UzFileFull => c"the file behind the store is full",
            Status::UzCorrupt => c"the page is damaged",
            Status::UzSnapshot => c"no snapshot, or a damaged one",
            Status::UzOther => c"another error",
            Status::UzPanic => c"a defect of the library",
        }
    }
}

/// The code of an error.
pub(crate) trait HasStatus {
    fn status(&self) -> Status;
}

impl HasStatus for StoreError {
    fn status(&self) -> Status {
        match self {
            StoreError::Backing { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull => Status::UzFileFull,
                _ => Status::UzIo,
            },
            _ if self.is_pool_limit() => Status::UzLimit,
            StoreError::CompressPoor { .. } => Status::UzIncompressible,
            StoreError::CompressFail { .. } => Status::UzCompressor,
            StoreError::TenantLimit { .. } => Status::UzTenantLimit,
            StoreError::NoTenant { .. } => Status::UzTenant,
            StoreError::AllocFail { .. } | StoreError::IndexFull { .. } => Status::UzNoMemory,
            _ => Status::UzOther,
        }
    }
}

impl HasStatus for LoadError {
    fn status(&self) -> Status {
        match self {
            LoadError::Corrupt { .. } => Status::UzCorrupt,
            LoadError::Backing { .. } => Status::UzIo,
            _ => Status::UzOther,
        }
    }
}

impl HasStatus for ValueError {
    fn status(&self) -> Status {
        match self {
            ValueError::Length { .. } => Status::UzArgument,
            ValueError::Refused { source, .. } => source.status(),
            ValueError::TableFull { .. } if self.is_pool_limit() => Status::UzLimit,
            ValueError::TableFull { .. } => Status::UzNoMemory,
            ValueError::Load { source, .. } => source.status(),
            ValueError::Lost { .. } => Status::UzCorrupt,
            ValueError::NoRoom { .. } => Status::UzBuffer,
            _ => Status::UzOther,
        }
    }
}

impl HasStatus for BuildError {
    fn status(&self) -> Status {
        match self {
            BuildError::NoMemory(_) => Status::UzNoMemory,
            _ => Status::UzValue,
        }
    }
}

impl HasStatus for BackingError {
    fn status(&self) -> Status {
        match self {
            BackingError::NoMemory(_) => Status::UzNoMemory,
            BackingError::Option(_) | BackingError::NoSize { .. } => Status::UzValue,
            BackingError::TooSmall { .. } => Status::UzValue,
            _ => Status::UzIo,
        }
    }
}

impl HasStatus for TenantError {
    fn status(&self) -> Status {
        match self {
            TenantError::NoMemory { .. } => Status::UzNoMemory,
            _ => Status::UzTenant,
        }
    }
}

impl HasStatus for SnapshotError {
    fn status(&self) -> Status {
        match self {
            SnapshotError::NoMemory(_) => Status::UzNoMemory,
            SnapshotError::Page { source } => source.status(),
            _ => Status::UzIo,
        }
    }
}

impl HasStatus for RestoreError {
    fn status(&self) -> Status {
        match self {
            RestoreError::Read(error) => match error.fault {
                SnapshotFault::Io { .. } => Status::UzIo,
                SnapshotFault::NoMemory(_) => Status::UzNoMemory,
                _ => Status::UzSnapshot,
            },
            RestoreError::Build(error) => error.status(),
            RestoreError::Tenants(error) => error.status(),
            RestoreError::Compressor { .. } | RestoreError::Corrupt { .. } => Status::UzSnapshot,
            RestoreError::DoesNotFit { .. } | RestoreError::Index { .. } => Status::UzLimit,
            RestoreError::NoMemory(_) => Status::UzNoMemory,
            _ => Status::UzOther,
        }
    }
}

impl HasStatus for io::Error {
    fn status(&self) -> Status {
        Status::UzIo
    }
}
