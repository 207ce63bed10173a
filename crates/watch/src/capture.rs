//! Packets of a trace in a file of pcapng, which tcpdump and others read: each as it came and as it
//! left, with what became of it as a comment.

use anyhow::{Context, ensure};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_control::engine::{EngineError, TracedPacket};

/// Timestamps are nanoseconds: 10 to the minus 9.
const NANOSECONDS: u8 = 9;
/// Directions of a packet, in the lowest bits of its flags.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A file that packets are written to.
pub struct Capture {
    writer: PcapNgWriter<BufWriter<File>>,
    interfaces: HashMap<String, u32>,
    path: PathBuf,
    /// It was not there before.
    made: bool,
}

/// Pipes and devices are refused: who reads from one, or nobody, would hold up the trace, and with it the one place
/// that there is for one.
fn regular(path: &Path, about: &Metadata) -> anyhow::Result<()> {
    ensure!(
        about.is_file(),
        "{} is no regular file: give --write a file; without --write, --json gives the packets to other programs",
        path.display()
    );
    Ok(())
}

fn is_there(path: &Path) -> anyhow::Error {
    let words = format!(
        "{} is there already and stays as it is; give --write another file, or --force to write it anew",
        path.display()
    );
    EngineError::Conflict(words).into()
}

/// Refuses a file that [`Capture::create`] would refuse.
///
/// # Errors
/// If it is there, and is not to be written anew; if it is a pipe or a device.
pub fn may_create(path: &Path, anew: bool) -> anyhow::Result<()> {
    if let Ok(about) = fs::metadata(path) {
        regular(path, &about)?;
    }
    let there = !anew && fs::symlink_metadata(path).is_ok();
    if there { Err(is_there(path)) } else { Ok(()) }
}

/// What the system says of a write: the library calls that a reading.
fn told(error: PcapError) -> anyhow::Error {
    match error {
        PcapError::IoError(error) => anyhow::Error::from(error),
        error => anyhow::Error::new(error),
    }
}

impl Capture {
    /// Makes the file, for its owner alone: what packets carry is in it. One that is there is refused, or written anew
    /// if so asked. Nothing is waited for.
    ///
    /// # Errors
    /// If it is there, is no regular file, or cannot be written.
    pub fn create(path: &Path, anew: bool) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        // What has become a pipe since somebody looked is opened at once, or not.
        options.write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
        let made = options.clone().create_new(true).open(path);
        let (file, made) = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                may_create(path, anew)?;
                (options.create(true).truncate(true).open(path), false)
            }
            made => (made, true),
        };
        let file = file.with_context(|| format!("write {}", path.display()))?;
        regular(path, &file.metadata()?)?;
        let writer = PcapNgWriter::new(BufWriter::new(file));
        let writer = writer.map_err(told).with_context(|| format!("write {}", path.display()))?;
        Ok(Self { writer, interfaces: HashMap::new(), path: path.to_owned(), made })
    }

    /// A file that was made for this, and that nothing could be written to, would only be in the way of the next try.
    fn or_gone(&mut self, written: anyhow::Result<()>) -> anyhow::Result<()> {
        if written.is_err() && self.made {
            let about = self.writer.get_mut().get_ref().metadata();
            if about.is_ok_and(|about| about.len() == 0) {
                self.made = false;
                let _ = fs::remove_file(&self.path);
            }
        }
        written
    }

    /// Adds a packet, with what became of it in words.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, packet: &TracedPacket, words: &str) -> anyhow::Result<()> {
        let added = self.both(packet, words);
        self.or_gone(added)
    }

    /// A packet as it came, and as it left.
    fn both(&mut self, packet: &TracedPacket, words: &str) -> anyhow::Result<()> {
        let rules = packet.rules.join(" ");
        let comment = format!("{words}\nrules: {rules}");
        let came = (&packet.frame[..], packet.length, INBOUND);
        self.block(&packet.interface, packet.time, came, comment)?;
        if let (Some(out), Some(frame), Some(length)) =
            (&packet.out, packet.frame_after.as_deref(), packet.length_after)
        {
            let comment = format!("as it left: {words}\nrules: {rules}");
            self.block(out, packet.time, (frame, length, OUTBOUND), comment)?;
        }
        Ok(())
    }

    fn block(
        &mut self,
        interface: &str,
        time: u64,
        (frame, length, direction): (&str, u32, u32),
        comment: String,
    ) -> anyhow::Result<()> {
        let interface_id = self.interface(interface)?;
        let byte = |at: usize| u8::from_str_radix(frame.get(at..at + 2)?, 16).ok();
        let data: Vec<u8> = (0..frame.len()).step_by(2).map_while(byte).collect();
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(time),
            original_len: length,
            data: data.into(),
            options: vec![
                EnhancedPacketOption::Flags(direction),
                EnhancedPacketOption::Comment(comment.into()),
            ],
        };
        let written = self.writer.write_pcapng_block(block);
        written.map(drop).map_err(told).with_context(|| format!("write {}", self.path.display()))
    }

    /// The number of an interface in the file.
    fn interface(&mut self, name: &str) -> anyhow::Result<u32> {
        if let Some(number) = self.interfaces.get(name) {
            return Ok(*number);
        }
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.to_owned().into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        let written = self.writer.write_pcapng_block(block);
        written.map_err(told).with_context(|| format!("write {}", self.path.display()))?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Has what was added stand in the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        let flushed = self.writer.get_mut().flush();
        let flushed = flushed.with_context(|| format!("write {}", self.path.display()));
        self.or_gone(flushed)
    }

    /// No more packets.
    ///
    /// # Errors
    /// If what is left cannot be written.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused() {
        for anew in [false, true] {
            let path = Path::new("/dev/null");
            for refused in [may_create(path, anew), Capture::create(path, anew).map(drop)] {
                let said = refused.expect_err("a device is no file").to_string();
                assert!(said.starts_with("/dev/null is no regular file"), "{said}");
            }
        }
    }

    #[test]
    fn a_full_disc_is_told_as_the_system_tells_it() {
        let full = std::io::Error::from(ErrorKind::StorageFull);
        let words = full.to_string();
        assert_eq!(told(PcapError::IoError(full)).to_string(), words);
        // What cannot be said in the format is told by the library.
        assert!(told(PcapError::InvalidInterfaceId(7)).to_string().contains('7'));
    }
}
