//! The fields that begin each JSON document of each command.

use std::time::SystemTime;

use serde::Serialize;

use super::Machine;
use crate::lab::page_set::rfc3339;

/// The form of a document. Each has a JSON Schema in docs/reference/schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// A comparison by replays.
    Compare,
    /// A comparison of a command under a limit.
    CompareLimit,
    /// The description of a page set.
    Capture,
    /// The size classes of zsmalloc.
    Classes,
    /// The contents of a snapshot.
    Stat,
    /// The study of indexes.
    BenchIndex,
    /// The study of mappings.
    BenchMap,
    /// The study of checks for same-filled pages.
    BenchSameFilled,
    /// The study of a machine that swaps.
    BenchSwapload,
    /// A search for wrong answers.
    Torture,
    /// The conditions of `uzswap run`.
    Doctor,
    /// One sample of `uzswap top`.
    Top,
    /// An audit by `uzswap top`.
    TopAudit,
    /// The figures of one `uzswap run`.
    Run,
    /// Advice.
    Advise,
}

impl Schema {
    /// All of them.
    pub const ALL: [Schema; 15] = [
        Schema::Compare,
        Schema::CompareLimit,
        Schema::Capture,
        Schema::Classes,
        Schema::Stat,
        Schema::BenchIndex,
        Schema::BenchMap,
        Schema::BenchSameFilled,
        Schema::BenchSwapload,
        Schema::Torture,
        Schema::Doctor,
        Schema::Top,
        Schema::TopAudit,
        Schema::Run,
        Schema::Advise,
    ];

    /// Its name and its version. A field that is removed, renamed or has another meaning makes a
    /// new version; a field that is added does not.
    pub fn name(self) -> &'static str {
        match self {
            Schema::Compare => "uzswap-compare/1",
            Schema::CompareLimit => "uzswap-compare-limit/1",
            Schema::Capture => "uzswap-capture/1",
            Schema::Classes => "uzswap-classes/1",
            Schema::Stat => "uzswap-stat/1",
            Schema::BenchIndex => "uzswap-bench-index/1",
            Schema::BenchMap => "uzswap-bench-map/1",
            Schema::BenchSameFilled => "uzswap-bench-same-filled/1",
            Schema::BenchSwapload => "uzswap-bench-swapload/1",
            Schema::Torture => "uzswap-torture/1",
            Schema::Doctor => "uzswap-doctor/1",
            Schema::Top => "uzswap-top/1",
            Schema::TopAudit => "uzswap-top-audit/1",
            Schema::Run => "uzswap-run/1",
            Schema::Advise => "uzswap-advise/1",
        }
    }

    /// The words of its command.
    pub fn command(self) -> &'static str {
        match self {
            Schema::Compare | Schema::CompareLimit => "compare",
            Schema::Capture => "capture",
            Schema::Classes => "classes",
            Schema::Stat => "stat",
            Schema::BenchIndex => "bench index",
            Schema::BenchMap => "bench map",
            Schema::BenchSameFilled => "bench same-filled",
            Schema::BenchSwapload => "bench swapload",
            Schema::Torture => "torture",
            Schema::Doctor => "doctor",
            Schema::Top | Schema::TopAudit => "top",
            Schema::Run => "run",
            Schema::Advise => "advise",
        }
    }
}

/// The fields themselves.
#[derive(Debug, Clone, Serialize)]
pub struct Envelope {
    /// Name and version of the form.
    pub schema: &'static str,
    /// Version of uzswap.
    pub version: &'static str,
    /// The words of the command.
    pub command: &'static str,
    /// Time at which the document was made: RFC 3339, in UTC.
    pub created_at: String,
    /// The machine.
    pub machine: Machine,
}

impl Envelope {
    /// The fields of a document that this machine makes now.
    pub fn new(schema: Schema) -> Envelope {
        Envelope {
            schema: schema.name(),
            version: env!("CARGO_PKG_VERSION"),
            command: schema.command(),
            created_at: rfc3339(SystemTime::now()),
            machine: Machine::this(),
        }
    }

    /// Sets the time for the next document of a series.
    pub fn renew(&mut self) {
        self.created_at = rfc3339(SystemTime::now());
    }

    /// A document: these fields, then those of the result.
    pub fn around<'a, T: Serialize>(&'a self, result: &'a T) -> Document<'a, T> {
        Document { envelope: self, result }
    }
}

/// A result in its envelope.
#[derive(Debug, Serialize)]
pub struct Document<'a, T> {
    #[serde(flatten)]
    envelope: &'a Envelope,
    #[serde(flatten)]
    result: &'a T,
}
