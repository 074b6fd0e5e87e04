//! The fields that begin each JSON document of each command.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Machine;
use crate::corpus::page_set::rfc3339;
use uzswap::by_name::by_name;
use uzswap::named_enum::named;

/// The form of a document. Each has a JSON Schema in docs/reference/schema.
///
/// A name has a version. A field that is removed, renamed or has another meaning makes a new one; a
/// field that is added does not.
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
    /// A sample for a fleet.
    Sample,
    /// Settings over a fleet.
    FleetReplay,
    /// Simulated machines.
    FleetSimulate,
}

named!(
    Schema,
    "document",
    Compare => "uzswap-compare/1",
    CompareLimit => "uzswap-compare-limit/1",
    Capture => "uzswap-capture/1",
    Classes => "uzswap-classes/1",
    Stat => "uzswap-stat/1",
    BenchIndex => "uzswap-bench-index/1",
    BenchMap => "uzswap-bench-map/1",
    BenchSameFilled => "uzswap-bench-same-filled/1",
    BenchSwapload => "uzswap-bench-swapload/1",
    Torture => "uzswap-torture/1",
    Doctor => "uzswap-doctor/1",
    Top => "uzswap-top/1",
    TopAudit => "uzswap-top-audit/1",
    Run => "uzswap-run/1",
    Advise => "uzswap-advise/1",
    Sample => "uzswap-sample/1",
    FleetReplay => "uzswap-fleet-replay/1",
    FleetSimulate => "uzswap-fleet-simulate/1",
);
by_name!(Schema);

impl Schema {
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
            Schema::Sample => "sample",
            Schema::FleetReplay => "fleet replay",
            Schema::FleetSimulate => "fleet simulate",
        }
    }
}

/// The fields themselves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope {
    /// The form.
    pub schema: Schema,
    /// Version of uzswap.
    pub version: String,
    /// The words of the command.
    pub command: String,
    /// Time at which the document was made: RFC 3339, in UTC.
    pub created_at: String,
    /// The machine.
    pub machine: Machine,
}

impl Envelope {
    /// The fields of a document that this machine makes now.
    pub fn new(schema: Schema) -> Envelope {
        Envelope {
            schema,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: schema.command().to_owned(),
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
