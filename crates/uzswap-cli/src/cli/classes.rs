//! `uzswap classes`: the size classes of zsmalloc, the types of zblock.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::Failure;
use super::json::JsonOutput;
use crate::report::Schema;
use uzswap::named_enum::UnknownName;
use uzswap::page::PAGE_SIZE;
use uzswap::zpool::ZpoolKind;
use uzswap::zpool::zblock;
use uzswap::zpool::zsmalloc::{
    CHAIN_SIZE_MAX, CHAIN_SIZE_MIN, ChainRule, ClassTable, HandleHeader, SizeClass, ZsmallocOptions,
};

/// What `uzswap classes` is asked for.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Classes {
    /// Allocator: zsmalloc, or zblock, which has no options
    #[arg(long, value_name = "NAME", default_value_t = ZpoolKind::Zsmalloc,
          value_parser = parse_zpool)]
    zpool: ZpoolKind,

    /// Most host pages in a zspage, 4 to 16 [kernels up to 6.2: 4]
    #[arg(
        long,
        value_name = "PAGES",
        default_value_t = ZsmallocOptions::default().chain_size,
        value_parser = RangedU64ValueParser::<usize>::new()
            .range(CHAIN_SIZE_MIN as u64..=CHAIN_SIZE_MAX as u64),
    )]
    chain_size: usize,

    /// Choice of a chain: used-percent (kernels up to 6.2) or least-waste
    #[arg(long, value_name = "RULE", default_value_t = ZsmallocOptions::default().chain_rule)]
    chain_rule: ChainRule,

    /// Place of an object's handle: in-object (as in kernels) or beside
    #[arg(long, value_name = "PLACE", default_value_t = ZsmallocOptions::default().handle_header)]
    handle_header: HandleHeader,

    /// Print JSON instead of a table, or write it to FILE beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// The result; with `--json`, in an envelope.
#[derive(Debug, Serialize)]
struct Report {
    zpool: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    zsmalloc: Option<Zsmalloc>,
    classes: Vec<Row>,
    class_count: usize,
    /// Mean over all object lengths of slot bytes less object bytes.
    mean_slot_waste_bytes: f64,
    /// The same, with each slot's share of its zspage's tail.
    mean_waste_bytes: f64,
}

/// Figures that zsmalloc alone has.
#[derive(Debug, Serialize)]
struct Zsmalloc {
    chain_size: usize,
    chain_rule: &'static str,
    handle_header: &'static str,
    /// From this length on, an object takes a whole page.
    huge_bytes: usize,
}

/// One size class.
#[derive(Debug, Serialize)]
struct Row {
    index: usize,
    slot_bytes: usize,
    pages: usize,
    slots: usize,
    tail_waste_bytes: usize,
    /// Of the zspage's bytes.
    tail_waste_percent: f64,
    object_bytes_min: usize,
    object_bytes_max: usize,
}

impl Classes {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Classes { zpool, chain_size, chain_rule, handle_header, json } = self;
        let mut output = JsonOutput::open(json.as_ref())?;
        let options = ZsmallocOptions::default()
            .chain_size(chain_size)
            .chain_rule(chain_rule)
            .handle_header(handle_header);
        let report = match zpool {
            ZpoolKind::Zblock => Report::of_zblock(),
            _ => Report::of_zsmalloc(&ClassTable::new(options)),
        };
        output.print(Schema::Classes, &report, || report.text())
    }
}

impl Report {
    fn of_zsmalloc(table: &ClassTable) -> Report {
        let options = table.options();
        let zsmalloc = Zsmalloc {
            chain_size: options.chain_size,
            chain_rule: options.chain_rule.name(),
            handle_header: options.handle_header.name(),
            huge_bytes: table.huge_bytes(),
        };
        let place_of = |bytes| table.place_of(bytes);
        let report = Report::new(ZpoolKind::Zsmalloc, table.classes(), place_of, PAGE_SIZE);
        Report { zsmalloc: Some(zsmalloc), ..report }
    }

    fn of_zblock() -> Report {
        let max = zblock::OBJECT_BYTES_MAX;
        Report::new(ZpoolKind::Zblock, &zblock::TYPES, zblock::place_of, max)
    }

    /// `place_of` leads from the length of an object, of at most `object_bytes_max`, to its class.
    fn new(
        zpool: ZpoolKind,
        table: &[SizeClass],
        place_of: impl Fn(usize) -> usize,
        object_bytes_max: usize,
    ) -> Report {
        let mut classes: Vec<Row> = table.iter().map(Row::new).collect();
        let (mut slot_waste, mut waste) = (0.0, 0.0);
        for bytes in 1..=object_bytes_max {
            let place = place_of(bytes);
            let class = &table[place];
            slot_waste += (class.slot_bytes - bytes) as f64;
            waste += (class.pages * PAGE_SIZE) as f64 / class.slots as f64 - bytes as f64;
            let row = &mut classes[place];
            row.object_bytes_min = row.object_bytes_min.min(bytes);
            row.object_bytes_max = bytes;
        }
        Report {
            zpool: zpool.name(),
            zsmalloc: None,
            class_count: classes.len(),
            classes,
            mean_slot_waste_bytes: slot_waste / object_bytes_max as f64,
            mean_waste_bytes: waste / object_bytes_max as f64,
        }
    }

    /// The table, smallest class first, and the closing lines.
    fn text(&self) -> String {
        let head = match &self.zsmalloc {
            Some(Zsmalloc { chain_size, chain_rule, handle_header, .. }) => format!(
                "chain size {chain_size}, chain rule {chain_rule}, handle header {handle_header}"
            ),
            None => format!("types of {}; tails have the header of a block", self.zpool),
        };
        let mut text = format!(
            "{head}\n\n{:>5} {:>10} {:>6} {:>8} {:>11} {:>8} {:>13}\n",
            "index", "slot bytes", "pages", "objects", "tail bytes", "tail %", "object bytes",
        );
        for row in &self.classes {
            let served = format!("{}-{}", row.object_bytes_min, row.object_bytes_max);
            writeln!(
                text,
                "{:>5} {:>10} {:>6} {:>8} {:>11} {:>8.2} {served:>13}",
                row.index,
                row.slot_bytes,
                row.pages,
                row.slots,
                row.tail_waste_bytes,
                row.tail_waste_percent,
            )
            .expect("a string takes all");
        }
        let end = match &self.zsmalloc {
            Some(Zsmalloc { huge_bytes, .. }) => {
                format!("huge: from {huge_bytes} bytes on, an object takes a whole page")
            }
            None => "an object is shorter than its slot".to_owned(),
        };
        let max = self.classes.last().map_or(0, |row| row.object_bytes_max);
        writeln!(
            text,
            "\nclasses: {}\n{end}\n\
             mean waste of objects of 1 to {max} bytes: {:.1} bytes of the slot, \
             {:.1} with its share of the tail",
            self.class_count, self.mean_slot_waste_bytes, self.mean_waste_bytes,
        )
        .expect("a string takes all");
        text
    }
}

impl Row {
    /// The range of objects is empty yet.
    fn new(class: &SizeClass) -> Row {
        let tail_waste_bytes = class.tail_waste_bytes();
        Row {
            index: class.index,
            slot_bytes: class.slot_bytes,
            pages: class.pages,
            slots: class.slots,
            tail_waste_bytes,
            tail_waste_percent: 100.0 * tail_waste_bytes as f64 / (class.pages * PAGE_SIZE) as f64,
            object_bytes_min: PAGE_SIZE,
            object_bytes_max: 0,
        }
    }
}

/// An allocator with size classes.
fn parse_zpool(name: &str) -> Result<ZpoolKind, String> {
    match name.parse() {
        Ok(zpool @ (ZpoolKind::Zsmalloc | ZpoolKind::Zblock)) => Ok(zpool),
        Ok(zpool) => Err(format!("{zpool} has no size classes; one of: zsmalloc, zblock")),
        Err(error) => Err(UnknownName::to_string(&error)),
    }
}
