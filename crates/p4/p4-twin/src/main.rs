//! Compares the interpreter with the evaluator on random programs, and ends with status 1 at a difference.

#![forbid(unsafe_code)]

use clap::Parser;
use p4_twin::compare::{compare, compare_rich};
use std::process::ExitCode;
use std::time::Instant;

/// Differences printed before it gives up.
const DIFFERENCES: u64 = 10;

#[derive(Debug, Parser)]
struct Arguments {
    /// How many programs
    #[arg(long, default_value_t = 10_000)]
    programs: u64,
    /// The first one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Packets through each
    #[arg(long, default_value_t = 6)]
    packets: u32,
    /// Programs with unions and the like
    #[arg(long)]
    rich: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let compare = if arguments.rich { compare_rich } else { compare };
    let start = Instant::now();
    let (mut done, mut sent, mut differences) = (0, 0, 0);
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.programs) {
        match compare(seed, arguments.packets) {
            Ok(packets) => sent += packets,
            Err(difference) => {
                println!("{difference}");
                differences += 1;
            }
        }
        done += 1;
        if differences == DIFFERENCES {
            break;
        }
    }
    println!(
        "{done} programs, {} packets, of which {sent} left, in {:.0} s: {differences} differences",
        done * u64::from(arguments.packets),
        start.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(differences > 0))
}
