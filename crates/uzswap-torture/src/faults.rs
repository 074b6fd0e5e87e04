//! Faults of the world, their rates, and the faults in the operation of this thread.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use uzswap::named_enum::{UnknownName, named};

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The backing does not give blocks.
    ReadError,
    /// The disk does not take blocks; their content is unknown now.
    WriteError,
    /// The disk fails for a while, and recovers.
    Outage,
    /// The disk takes a part of the blocks and reports so.
    ShortWrite,
    /// It has no space.
    NoSpace,
    /// It cannot give space back.
    DiscardError,
    /// It takes its time.
    Delay,
    /// The disk reports that it took blocks and took a part of them.
    TornWrite,
    /// The disk reports that it took blocks and did not.
    LostWrite,
    /// The disk writes blocks to a wrong place.
    MisdirectedWrite,
    /// A bit of it changes.
    BitRot,
    /// A bit of an object in the pool changes.
    ObjectRot,
    /// The pool gets no host page.
    NoPages,
    /// The pool gets no memory for its tables.
    NoTables,
    /// The index gets no memory.
    NoIndex,
    /// The compressor fails.
    CompressFail,
    /// The compressor finds the page too large.
    CompressTooBig,
    /// The compressed length differs each time.
    CompressLonger,
    /// The file of a snapshot fails, at any byte.
    FileError,
    /// The file takes or gives some bytes of those asked for, or is interrupted.
    FileShort,
    /// Another thread does something, just now.
    Meanwhile,
}

named!(
    Fault, "fault",
    ReadError => "read-error", WriteError => "write-error", Outage => "outage",
    ShortWrite => "short-write", NoSpace => "no-space", DiscardError => "discard-error",
    Delay => "delay", TornWrite => "torn-write", LostWrite => "lost-write",
    MisdirectedWrite => "misdirected-write", BitRot => "bit-rot", ObjectRot => "object-rot",
    NoPages => "no-pages", NoTables => "no-tables", NoIndex => "no-index",
    CompressFail => "compress-fail", CompressTooBig => "compress-too-big",
    CompressLonger => "compress-longer", FileError => "file-error",
    FileShort => "file-short", Meanwhile => "meanwhile",
);

/// How many there are.
pub(super) const FAULTS: usize = Fault::ALL.len();

impl Fault {
    /// Its place in tables.
    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// The fault changes bytes silently: only checksums find it.
    pub(super) fn is_silent(self) -> bool {
        use Fault::{BitRot, LostWrite, MisdirectedWrite, ObjectRot, TornWrite};
        matches!(self, TornWrite | LostWrite | MisdirectedWrite | BitRot | ObjectRot)
    }
}

/// Some of the faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultSet(u32);

impl FaultSet {
    /// None of them.
    pub const NONE: FaultSet = FaultSet(0);
    /// All of them.
    pub const ALL: FaultSet = FaultSet((1 << FAULTS) - 1);

    /// Whether it has this one.
    pub fn has(self, fault: Fault) -> bool {
        self.0 >> fault.number() & 1 == 1
    }

    /// Whether it has any of these.
    pub(super) fn has_any(self, faults: &[Fault]) -> bool {
        faults.iter().any(|&fault| self.has(fault))
    }

    /// With one more.
    #[must_use]
    pub fn with(self, fault: Fault) -> FaultSet {
        FaultSet(self.0 | 1 << fault.number())
    }

    /// Those that pass.
    pub(super) fn filter(self, pass: impl Fn(Fault) -> bool) -> FaultSet {
        let passing = Fault::ALL.into_iter().filter(|&fault| self.has(fault) && pass(fault));
        passing.fold(FaultSet::NONE, FaultSet::with)
    }
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == FaultSet::ALL {
            return f.write_str("all");
        }
        let names: Vec<&str> =
            Fault::ALL.into_iter().filter(|&fault| self.has(fault)).map(Fault::name).collect();
        if names.is_empty() { f.write_str("none") } else { f.write_str(&names.join(",")) }
    }
}

impl FromStr for FaultSet {
    type Err = UnknownName;

    /// `all`, `none`, or names with commas between them.
    fn from_str(text: &str) -> Result<FaultSet, UnknownName> {
        match text {
            "all" => Ok(FaultSet::ALL),
            "none" => Ok(FaultSet::NONE),
            list => list
                .split(',')
                .try_fold(FaultSet::NONE, |set, name| Ok(set.with(name.trim().parse()?))),
        }
    }
}

/// Set beside faults: a block was read that is not as the backing said.
const LIE: u32 = 1 << 31;
const _: () = assert!(FAULTS < 31);

thread_local! {
    static STRUCK: Cell<u32> = const { Cell::new(0) };
}

/// Faults in the operation of this thread: a refusal must have its reason here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Struck(u32);

impl Struck {
    /// Begins an operation.
    pub(super) fn forget() {
        STRUCK.set(0);
    }

    /// What there was since.
    pub(super) fn since() -> Struck {
        Struck(STRUCK.get())
    }

    pub(super) fn note(fault: Fault) {
        STRUCK.set(STRUCK.get() | 1 << fault.number());
    }

    pub(super) fn note_lie() {
        STRUCK.set(STRUCK.get() | LIE);
    }

    pub(super) fn by(self, faults: &[Fault]) -> bool {
        FaultSet(self.0 & !LIE).has_any(faults)
    }

    /// A block that was read had been lied about.
    pub(super) fn by_lie(self) -> bool {
        self.0 & LIE != 0
    }
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lie = if self.by_lie() { ", a false block" } else { "" };
        write!(f, "{}{lie}", FaultSet(self.0 & !LIE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_names() {
        for text in ["all", "none", "no-pages,delay"] {
            let set: FaultSet = text.parse().unwrap();
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        let set: FaultSet = "delay,no-pages".parse().unwrap();
        assert!(set.has(Fault::Delay) && !set.has(Fault::Outage));
        assert!("delay,no-page".parse::<FaultSet>().unwrap_err().to_string().contains("no-page'"));
    }
}
