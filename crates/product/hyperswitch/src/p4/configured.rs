//! Programs that a configuration file names, as the control process needs them.

use super::load::bake;
use control::P4Files;
use management::P4Config;
use p4_ir::setup;
use std::path::Path;

/// What the control process is told of programs, which it has as bytes.
pub const FILES: P4Files = P4Files { read, losses };

/// A program with its entries, as the data plane takes it.
fn read(own: &P4Config, directory: &Path, threads: usize) -> Result<Vec<u8>, String> {
    let entries: Vec<_> = own.entries.iter().map(|file| directory.join(file)).collect();
    let p4info = own.p4info.as_ref().map(|file| directory.join(file));
    let baked = bake(&directory.join(&own.program), p4info.as_deref(), &entries);
    let (program, given) = baked.map_err(|error| format!("{error:#}"))?;
    let bytes = setup::encode(&program, &given);
    let operations = own.operations.unwrap_or_default();
    datapath::check_p4(&bytes, operations.get(), threads)?;
    Ok(bytes)
}

fn losses(former: &[u8], next: &[u8]) -> Vec<String> {
    match (setup::decode(former), setup::decode(next)) {
        (Ok((former, _)), Ok((next, _))) => p4_interpreter::losses(&former, &next),
        _ => Vec::new(),
    }
}
