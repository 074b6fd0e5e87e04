//! `uzswap top --audit`: has supervisors audit their state.

use std::fmt::Write as _;

use anyhow::anyhow;
use serde::Serialize;

use super::view::{NOTHING, note};
use crate::cli::Failure;
use crate::cli::json::JsonOutput;
use crate::report::Schema;
use uzswap_pager::{AuditReport, Survey, Violation, find_run, survey};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Audits {
    audits: Vec<AuditReport>,
}

/// Audits one run, or all runs of this user.
pub(super) fn audit(only: Option<u32>, output: &mut JsonOutput) -> Result<(), Failure> {
    let Survey::<AuditReport> { runs: audits, silent } = match only {
        Some(pid) => {
            let found = find_run(pid).map_err(|error| Failure::Machine(error.into()))?;
            Survey { runs: vec![found], ..Survey::default() }
        }
        None => survey(),
    };
    let is_none = audits.is_empty();
    let is_wrong = audits.iter().any(|audit| audit.violation.is_some());
    let audits = Audits { audits };
    output.print(Schema::TopAudit, &audits, || audits.audits.iter().map(text).collect())?;
    match note(&silent) {
        _ if is_wrong => {
            Err(Failure::Check(anyhow!("an invariant does not hold: a defect of uzswap")))
        }
        Some(note) => Err(Failure::Machine(anyhow!(note))),
        None if is_none => Err(Failure::Machine(anyhow!(NOTHING))),
        None => Ok(()),
    }
}

/// One line for the run, and one for a violation.
fn text(audit: &AuditReport) -> String {
    let AuditReport { pid, spaces, skipped_spaces, pages, slots, violation } = audit;
    let mut text = format!("run {pid}: {spaces} address spaces");
    if *skipped_spaces > 0 {
        write!(text, " ({skipped_spaces} not compared with the kernel)").expect("into a string");
    }
    write!(text, ", {pages} evicted pages, {slots} slots: ").expect("into a string");
    text += &violation.as_ref().map_or("all invariants hold\n".to_owned(), text_of_violation);
    text
}

fn text_of_violation(violation: &Violation) -> String {
    let Violation { invariant, pid, address, text } = violation;
    let mut line = format!("a violation\n  {invariant}");
    pid.iter().for_each(|pid| line += &format!(", process {pid}"));
    address.iter().for_each(|address| line += &format!(", page {address:#x}"));
    format!("{line}: {text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_names_process_and_page() {
        let violation = Violation {
            invariant: "P1".to_owned(),
            pid: Some(42),
            address: Some(0x7000),
            text: "an evicted page is resident".to_owned(),
        };
        let audit = AuditReport { pid: 40, spaces: 3, pages: 2, slots: 1, ..Default::default() };
        let expected = "run 40: 3 address spaces, 2 evicted pages, 1 slots: ";
        assert_eq!(text(&audit), expected.to_owned() + "all invariants hold\n");
        let audit = AuditReport { violation: Some(violation), ..audit };
        let line = "  P1, process 42, page 0x7000: an evicted page is resident\n";
        assert_eq!(text(&audit), format!("{expected}a violation\n{line}"));
        let audit = AuditReport { skipped_spaces: 1, violation: None, ..audit };
        assert!(text(&audit).contains("3 address spaces (1 not compared with the kernel), "));
    }
}
