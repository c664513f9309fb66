//! `hyperswitch p4 run`: packets from capture files through a program.
//!
//! Packets of all files are sent in the order of their time stamps, which are also the program's clock.
//! Entries come first, file by file: the tutorials' runtime JSON, or scripts of packet tests, whose packets
//! are sent where they stand. Packets that leave by a port go to `PORT.pcap` in the output directory.
//! `expect` lines of a script are compared with what leaves from its start to the start of the next script
//! with such lines, or to the end.

use super::final_state::{self, FinalState};
use super::{entries, trace::Tracer};
use crate::capture_file::{ClassicWriter, packets};
use crate::cli::{P4RunArgs, PortFile};
use crate::output;
use anyhow::{Context as _, Result, bail, ensure};
use p4_interpreter::{Collected, Context, Drop, NoObserver, Packet};
use p4_ir::DigestId;
use p4_stf::script::Command;
use p4_stf::{Expectations, Session};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Greatest size of a capture file in bytes.
pub(super) const MAX_CAPTURE: u64 = 1 << 30;

/// Most ports by which packets may leave: each is a file.
const MAX_PORTS: usize = 512;

/// The summary, for users and as JSON.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "P4Run")]
pub struct Summary {
    packets: u64,
    parser_errors: u64,
    digests: u64,
    false_claims: u64,
    /// Packets that left, by port.
    outputs: BTreeMap<u32, u64>,
    /// Packets and copies that ended, by reason.
    drops: BTreeMap<&'static str, u64>,
    state: FinalState,
}

/// Runs the program.
///
/// # Errors
/// When a file cannot be read or written or makes no sense, or the program is not sound.
pub fn run(args: &P4RunArgs, json: bool) -> Result<()> {
    let program = super::load(&args.program, args.p4info.as_deref())?;
    let session = Session::new(program);
    let session = session.with_context(|| args.program.display().to_string())?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut runner = Runner {
        context: Context::new(session.engine(), args.seed),
        session,
        out: &args.out,
        files: BTreeMap::new(),
        trace: args.trace,
        json,
        number: 0,
        begin: None,
        clock: 0,
        text: String::new(),
        expected: None,
        problems: Vec::new(),
        digests: Vec::new(),
    };
    for file in &args.entries {
        runner.entries(file).with_context(|| file.display().to_string())?;
    }
    runner.captures(&args.pcaps)?;
    runner.end()
}

/// A file's contents, unless it is larger than that.
pub(super) fn limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let name = || path.display().to_string();
    let length = fs::metadata(path).with_context(name)?.len();
    ensure!(
        length <= limit,
        "{}: {length} bytes, {limit} are the limit",
        path.display()
    );
    fs::read(path).with_context(name)
}

struct Runner<'a> {
    session: Session,
    context: Context,
    out: &'a Path,
    files: BTreeMap<u32, (ClassicWriter<BufWriter<File>>, u64)>,
    trace: bool,
    /// The result is printed as JSON.
    json: bool,
    /// Packets sent.
    number: u64,
    /// Time stamp of the first packet of a capture.
    begin: Option<u64>,
    /// The program's time in nanoseconds. It does not go back.
    clock: u64,
    /// A packet's trace.
    text: String,
    /// The script whose expectations hold now, and these.
    expected: Option<(PathBuf, Expectations)>,
    /// What was found wrong but did not end the run: other packets than expected, captures that are cut off.
    problems: Vec<String>,
    /// The first digests that were sent.
    digests: Vec<(DigestId, Vec<u8>)>,
}

impl Runner<'_> {
    fn entries(&mut self, file: &Path) -> Result<()> {
        let text = String::from_utf8(limited(file, entries::MAX_FILE)?).context("not text")?;
        if text.trim_start().starts_with('{') {
            let wanted = entries::read(&text, self.session.engine().program())?;
            for (number, command) in wanted.commands.iter().enumerate() {
                self.session
                    .run(command)
                    .with_context(|| format!("entry {number}"))?;
            }
            for (number, session) in wanted.sessions {
                self.session.state().set_session(number, session)?;
            }
            return Ok(());
        }
        let script = p4_stf::script::parse(&text)?;
        if script
            .iter()
            .any(|line| matches!(line.command, Command::Expect(..)))
        {
            self.compare();
            self.expected = Some((file.to_owned(), Expectations::of(&script)));
        }
        for line in script {
            let at = || format!("line {}", line.line);
            match &line.command {
                Command::Packet(port, bytes) => {
                    self.clock += 1000;
                    self.send(*port, bytes, self.clock).with_context(at)?;
                }
                Command::Expect(..) => {}
                command => {
                    self.session.run(command).with_context(at)?;
                }
            }
        }
        Ok(())
    }

    /// Compares what the script in force expects with what left.
    fn compare(&mut self) {
        if let Some((file, expected)) = self.expected.take()
            && let Some(difference) = expected.difference()
        {
            self.problems.push(format!("{}: {difference}", file.display()));
        }
    }

    fn captures(&mut self, files: &[PortFile]) -> Result<()> {
        let mut contents = Vec::new();
        for file in files {
            contents.push(limited(&file.path, MAX_CAPTURE)?);
        }
        let mut all = Vec::new();
        for (file, bytes) in files.iter().zip(&contents) {
            let (packets, cut) = packets(bytes).with_context(|| file.path.display().to_string())?;
            if let Some(cut) = cut {
                let (name, whole) = (file.path.display(), output::counted(packets.len(), "packet"));
                self.problems.push(format!("{name}: {cut} behind {whole}"));
            }
            all.extend(
                packets
                    .into_iter()
                    .map(|packet| (packet.time_ns, file.port, packet.frame)),
            );
        }
        all.sort_by_key(|(time, _, _)| *time);
        for (time, port, frame) in all {
            let begin = *self.begin.get_or_insert(time);
            self.clock = self.clock.max(time.saturating_sub(begin));
            self.send(port, frame, time)?;
        }
        Ok(())
    }

    fn send(&mut self, port: u32, bytes: &[u8], stamp: u64) -> Result<()> {
        self.number += 1;
        let mut sink = Collected::default();
        let packet = Packet::whole(port, bytes);
        let (engine, state) = (self.session.engine(), self.session.state());
        let reading = state.read();
        if self.trace {
            let mut tracer = Tracer::new(engine, &mut self.text);
            tracer.begin(self.number, port, bytes.len());
            engine.run(
                &reading,
                &mut self.context,
                &packet,
                self.clock,
                &mut sink,
                &mut tracer,
            );
        } else {
            engine.run(
                &reading,
                &mut self.context,
                &packet,
                self.clock,
                &mut sink,
                &mut NoObserver,
            );
        }
        drop(reading);
        if self.trace {
            let text = std::mem::take(&mut self.text);
            match self.json {
                // On standard output nothing but the result.
                true => eprint!("{}", output::plain(&text)),
                false => output::print(&text)?,
            }
        }
        let room = final_state::MOST.saturating_sub(self.digests.len());
        self.digests.extend(sink.digests.into_iter().take(room));
        for (port, bytes) in sink.outputs {
            if let Some((_, expected)) = &mut self.expected {
                expected.sent(port, &bytes);
            }
            self.write(port, stamp, &bytes)?;
        }
        Ok(())
    }

    fn write(&mut self, port: u32, stamp: u64, bytes: &[u8]) -> Result<()> {
        if !self.files.contains_key(&port) {
            if self.files.len() == MAX_PORTS {
                bail!("packets leave by more than {MAX_PORTS} ports");
            }
            let path = self.out.join(format!("{port}.pcap"));
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            self.files
                .insert(port, (ClassicWriter::new(BufWriter::new(file))?, 0));
        }
        if let Some((file, count)) = self.files.get_mut(&port) {
            file.packet(stamp, bytes)?;
            *count += 1;
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.compare();
        let counts = *self.context.counts();
        let unseen = counts.digests.saturating_sub(self.digests.len() as u64);
        let mut summary = Summary {
            packets: counts.packets,
            parser_errors: counts.parser_errors,
            digests: counts.digests,
            false_claims: counts.false_claims,
            state: FinalState::of(&self.session, &self.digests, unseen),
            ..Summary::default()
        };
        for (port, (file, count)) in &mut self.files {
            file.flush()?;
            summary.outputs.insert(*port, *count);
        }
        for reason in Drop::ALL.into_iter().filter(|&reason| counts.dropped(reason) > 0) {
            summary.drops.insert(reason.name(), counts.dropped(reason));
        }
        if self.json {
            output::json(&summary)?;
        } else {
            output::print(&table(&summary))?;
        }
        ensure!(self.problems.is_empty(), "{}", self.problems.join("\n"));
        Ok(())
    }
}

/// The summary for users.
fn table(summary: &Summary) -> String {
    let mut text = format!("{} ran\n", output::counted(summary.packets, "packet"));
    let mut line = |count: u64, what: &str| {
        if count > 0 {
            text.push_str(&format!("{count:>8}  {what}\n"));
        }
    };
    for (port, count) in &summary.outputs {
        line(*count, &format!("left by port {port}"));
    }
    for (reason, count) in &summary.drops {
        line(*count, &format!("dropped: {reason}"));
    }
    line(summary.parser_errors, "parser errors");
    line(summary.digests, "digests");
    line(summary.false_claims, "false claims of the program");
    text + &summary.state.text()
}
