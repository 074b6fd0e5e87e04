//! Values of any length: how many each contender holds in the same real memory, and at which cost.
//! See README.md.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use uzswap::random::mix;
use uzswap::values::Values;
use uzswap::zpool::ZpoolKind;
use uzswap::zswap::{Incompressible, ZswapOptions};
use uzswap_sys::lz4::{self, Lz4State};
use uzswap_sys::process::{anonymous_bytes, disable_huge_pages, thread_time, trim_heap};

/// The variable by which a process knows that it is one run.
const RUN: &str = "PEERS_VALUES_RUN";

/// Loads and stores that are timed in one run, unless their bytes are more than 1 GiB.
const OPERATIONS: u64 = 200_000;

/// Compare stores of values: values held per MiB of real memory, time of a store and a load.
#[derive(Debug, Parser)]
#[command(name = "values", max_term_width = 100)]
struct Options {
    /// File to cut the values from, one after the other
    #[arg(long, value_name = "FILE")]
    corpus: PathBuf,
    /// Contenders to run
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    contenders: Vec<Contender>,
    /// Lengths of the values, in bytes
    #[arg(
        long, value_delimiter = ',', value_name = "BYTES",
        default_values_t = [100, 1 << 10, 8 << 10, 16 << 10, 100 << 10]
    )]
    lengths: Vec<usize>,
    /// Real memory that each contender is filled to, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    memory: u64,
    /// Runs of each contender, in turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Contender {
    /// `Values` over the default store: lz4, zsmalloc, records.
    Uzswap,
    /// The same, without records.
    UzswapBare,
    /// Without records, packed, lz4, units of 16 KiB.
    UzswapPacked,
    /// The same with zstd:1.
    UzswapDense,
    /// `moka::sync::Cache` of lz4 objects.
    Moka,
    /// `foyer_memory::Cache` of lz4 objects.
    Foyer,
    /// A `HashMap` under one mutex of lz4 objects of their exact size.
    MapLz4,
    /// The same of zstd:1 objects.
    MapZstd,
}

/// What one process does.
#[derive(Debug, Serialize, Deserialize)]
struct Spec {
    contender: Contender,
    corpus: PathBuf,
    len: usize,
    memory: u64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    per_mib: f64,
    store_ns: f64,
    load_ns: f64,
    replace_ns: f64,
    /// Memory after all values were replaced once, at random, over that before.
    growth: f64,
}

trait Holder {
    fn store(&self, key: u64, value: &[u8]);
    fn load(&self, key: u64, value: &mut Vec<u8>) -> bool;
    fn settle(&self) {}
}

impl Holder for Values {
    fn store(&self, key: u64, value: &[u8]) {
        Values::store(self, key, value).expect("there is no limit");
    }

    fn load(&self, key: u64, value: &mut Vec<u8>) -> bool {
        Values::load(self, key, value).expect("nothing is corrupt")
    }
}

type Object = Arc<[u8]>;

/// A value to an object of exact size and back; the value itself where it does not shrink.
enum Codec {
    Lz4(Mutex<Lz4State>),
    Zstd(Mutex<(zstd_safe::CCtx<'static>, zstd_safe::DCtx<'static>)>),
}

impl Codec {
    fn lz4() -> Codec {
        Codec::Lz4(Mutex::new(Lz4State::new()))
    }

    fn zstd() -> Codec {
        Codec::Zstd(Mutex::new((zstd_safe::CCtx::create(), zstd_safe::DCtx::create())))
    }

    /// Leaves the object in `out`; its length.
    fn encode(&self, value: &[u8], out: &mut [u8]) -> usize {
        let most = &mut out[..value.len() - 1];
        let bytes = match self {
            Codec::Lz4(state) => state.lock().expect("no panic").compress(value, most, 1),
            Codec::Zstd(contexts) => {
                contexts.lock().expect("no panic").0.compress(most, value, 1).ok()
            }
        };
        bytes.unwrap_or_else(|| {
            out[..value.len()].copy_from_slice(value);
            value.len()
        })
    }

    fn decode(&self, object: &[u8], len: usize, value: &mut Vec<u8>) {
        value.resize(len, 0);
        if object.len() == len {
            value.copy_from_slice(object);
            return;
        }
        let bytes = match self {
            Codec::Lz4(_) => lz4::decompress(object, value),
            Codec::Zstd(contexts) => {
                contexts.lock().expect("no panic").1.decompress(&mut value[..], object).ok()
            }
        };
        assert_eq!(bytes, Some(len), "an object of this codec");
    }
}

/// A map of objects, with a codec. Only one thread uses it: `out` is a room to compress to.
struct Peer<M> {
    map: M,
    codec: Codec,
    len: usize,
    out: Mutex<Vec<u8>>,
}

impl<M> Peer<M> {
    fn boxed(map: M, codec: Codec, len: usize) -> Box<dyn Holder>
    where
        Peer<M>: Holder + 'static,
    {
        Box::new(Peer { map, codec, len, out: Mutex::new(vec![0; len]) })
    }

    fn with_object<T>(&self, value: &[u8], keep: impl FnOnce(&[u8]) -> T) -> T {
        let mut out = self.out.lock().expect("no panic");
        let bytes = self.codec.encode(value, &mut out);
        keep(&out[..bytes])
    }
}

impl Holder for Peer<moka::sync::Cache<u64, Object>> {
    fn store(&self, key: u64, value: &[u8]) {
        self.with_object(value, |object| self.map.insert(key, object.into()));
    }

    fn load(&self, key: u64, value: &mut Vec<u8>) -> bool {
        let object = self.map.get(&key);
        object.inspect(|object| self.codec.decode(object, self.len, value)).is_some()
    }

    fn settle(&self) {
        self.map.run_pending_tasks();
    }
}

impl Holder for Peer<foyer_memory::Cache<u64, Object>> {
    fn store(&self, key: u64, value: &[u8]) {
        self.with_object(value, |object| drop(self.map.insert(key, object.into())));
    }

    fn load(&self, key: u64, value: &mut Vec<u8>) -> bool {
        let object = self.map.get(&key);
        object.inspect(|object| self.codec.decode(object.value(), self.len, value)).is_some()
    }
}

impl Holder for Peer<Mutex<HashMap<u64, Box<[u8]>>>> {
    fn store(&self, key: u64, value: &[u8]) {
        let object = self.with_object(value, |object| object.into());
        self.map.lock().expect("no panic").insert(key, object);
    }

    fn load(&self, key: u64, value: &mut Vec<u8>) -> bool {
        let map = self.map.lock().expect("no panic");
        map.get(&key).inspect(|object| self.codec.decode(object, self.len, value)).is_some()
    }
}

impl Contender {
    fn build(self, len: usize) -> Result<Box<dyn Holder>> {
        let with_policy = |options: ZswapOptions| -> Result<Box<dyn Holder>> {
            let options = options.incompressible(Incompressible::StoreAsIs);
            Ok(Box::new(Values::new(options.build()?)?))
        };
        let packed = ZswapOptions::bare().zpool(ZpoolKind::Packed).unit_pages(4);
        let capacity = 1 << 40;
        let weight = |_: &u64, object: &Object| object.len();
        Ok(match self {
            Contender::Uzswap => with_policy(ZswapOptions::default())?,
            Contender::UzswapBare => with_policy(ZswapOptions::bare())?,
            Contender::UzswapPacked => with_policy(packed)?,
            Contender::UzswapDense => with_policy(packed.compressor("zstd:1".parse()?))?,
            Contender::Moka => {
                let cache = moka::sync::Cache::builder().max_capacity(capacity as u64);
                let weigher = move |key: &u64, object: &Object| weight(key, object) as u32;
                Peer::boxed(cache.weigher(weigher).build(), Codec::lz4(), len)
            }
            Contender::Foyer => {
                let cache = foyer_memory::CacheBuilder::new(capacity).with_weighter(weight);
                let cache: foyer_memory::Cache<u64, Object> = cache.build();
                Peer::boxed(cache, Codec::lz4(), len)
            }
            Contender::MapLz4 => {
                Peer::boxed(Mutex::new(HashMap::<u64, Box<[u8]>>::new()), Codec::lz4(), len)
            }
            Contender::MapZstd => {
                Peer::boxed(Mutex::new(HashMap::<u64, Box<[u8]>>::new()), Codec::zstd(), len)
            }
        })
    }

    fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().to_owned()
    }
}

/// The n-th value: the file again and again, each time from another byte on.
fn value_of(file: &[u8], number: u64, len: usize) -> &[u8] {
    let places = (file.len() / len - 1) as u64;
    let pass = number / places;
    let start =
        (number % places) as usize * len + (mix(pass) as usize % len) * pass.min(1) as usize;
    &file[start..start + len]
}

fn ns_each(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count as f64
}

fn run(spec: &Spec) -> Result<Outcome> {
    disable_huge_pages();
    let file = std::fs::read(&spec.corpus)?;
    let len = spec.len;
    ensure!(len > 1 && file.len() >= 2 * len, "the file is too short for values of {len} bytes");
    trim_heap();
    let before = anonymous_bytes()?;
    let holder = spec.contender.build(len)?;
    let grown = || -> Result<u64> {
        holder.settle();
        Ok(anonymous_bytes()?.saturating_sub(before))
    };

    let step = (spec.memory as usize / 200 / len).max(1) as u64;
    let (mut count, mut time) = (0, Duration::ZERO);
    let memory = loop {
        let start = thread_time();
        for number in count..count + step {
            holder.store(mix(number), value_of(&file, number, len));
        }
        time += thread_time() - start;
        count += step;
        let memory = grown()?;
        if memory >= spec.memory {
            break memory;
        }
    };

    let operations = OPERATIONS.min((1 << 30) / len as u64);
    let mut value = Vec::new();
    let draw = |step: u64| mix(step ^ 0x5eed) % count;
    let start = thread_time();
    for step in 0..operations {
        ensure!(holder.load(mix(draw(step)), &mut value), "a value is missing");
        if step % 64 == 0 {
            ensure!(value == value_of(&file, draw(step), len), "a value came back wrong");
        }
        black_box(&value);
    }
    let load_ns = ns_each(thread_time() - start, operations);

    // By the values that are another number's: the bytes are about as many.
    let mut order: Vec<u64> = (0..count).collect();
    order.sort_unstable_by_key(|&number| mix(number ^ 0x0dd));
    let with_order = grown()?;
    let start = thread_time();
    for &number in &order {
        holder.store(mix(number), value_of(&file, count - 1 - number, len));
    }
    let replace_ns = ns_each(thread_time() - start, count);
    let growth = (grown()? + memory).saturating_sub(with_order) as f64 / memory as f64;
    for &number in order.iter().take(1000) {
        ensure!(holder.load(mix(number), &mut value), "a value is missing");
        ensure!(value == value_of(&file, count - 1 - number, len), "a value is not the new one");
    }
    let per_mib = count as f64 / (memory as f64 / f64::from(1 << 20));
    Ok(Outcome { per_mib, store_ns: ns_each(time, count), load_ns, replace_ns, growth })
}

/// Has a fresh process do the run, so that neither its heap nor its memory is another's.
fn ask(spec: &Spec) -> Result<Outcome> {
    let output = Command::new(std::env::current_exe()?)
        .env(RUN, serde_json::to_string(spec)?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the process of a run")?;
    ensure!(output.status.success(), "a run of {} failed", spec.contender.name());
    serde_json::from_slice(&output.stdout).context("a run gave no result")
}

/// The median, and the range where it is more than a tenth of that.
fn spread(outcomes: &[Outcome], figure: impl Fn(&Outcome) -> f64, digits: usize) -> String {
    let mut figures: Vec<f64> = outcomes.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    let (low, median, high) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
    match high - low > median / 10.0 {
        true => format!("{median:.digits$} ({low:.digits$} to {high:.digits$})"),
        false => format!("{median:.digits$}"),
    }
}

fn main() -> Result<()> {
    if let Ok(spec) = std::env::var(RUN) {
        let outcome = run(&serde_json::from_str(&spec)?)?;
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(());
    }
    let options = Options::parse();
    if options.rounds == 0 || options.memory == 0 {
        bail!("without rounds and memory there is nothing to measure");
    }
    let contenders = match &options.contenders[..] {
        [] => Contender::value_variants(),
        chosen => chosen,
    };
    for &len in &options.lengths {
        println!("\n{len} bytes | values per MiB | store ns | load ns | replace ns | then memory");
        println!("---|---|---|---|---|---");
        let mut outcomes: Vec<Vec<Outcome>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for (&contender, outcomes) in contenders.iter().zip(&mut outcomes) {
                let (corpus, memory) = (options.corpus.clone(), options.memory << 20);
                outcomes.push(ask(&Spec { contender, corpus, len, memory })?);
            }
        }
        for (contender, outcomes) in contenders.iter().zip(&outcomes) {
            println!(
                "{} | {} | {} | {} | {} | {}",
                contender.name(),
                spread(outcomes, |outcome| outcome.per_mib, 1),
                spread(outcomes, |outcome| outcome.store_ns, 0),
                spread(outcomes, |outcome| outcome.load_ns, 0),
                spread(outcomes, |outcome| outcome.replace_ns, 0),
                spread(outcomes, |outcome| outcome.growth, 2),
            );
            std::io::stdout().flush()?;
        }
    }
    Ok(())
}
