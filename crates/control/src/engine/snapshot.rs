//! What a snapshot needs of the engine: the tables that packets follow, as they stand in the kernel.

use super::{Engine, EngineError, PlaneResult};
use crate::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;
use weir_plane::Plane;
use weir_steering::{ELEMENT_BYTES, Image};

/// A published table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TableSnapshot {
    /// Name of the service whose table it is.
    pub service: String,
    /// Name of the method that the table is of.
    pub method: String,
    /// Counts the tables of the service.
    pub generation: u64,
    /// Over everything but flags and generation, hexadecimal.
    pub digest: String,
    /// Flags, as packets see them.
    pub flags: u32,
    /// States that it holds.
    pub states: u64,
    /// Bytes, header and body.
    pub bytes: usize,
    /// Header and body, hexadecimal, if they were asked for. The key of the flow hash is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Why it cannot be read back, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// What the engine gives to a snapshot.
pub struct Inside {
    /// What is in force.
    pub config: Config,
    /// The instance's file.
    pub file: PathBuf,
    /// The tables, by the services' names.
    pub tables: Vec<TableSnapshot>,
}

/// Header and body of a table, hexadecimal.
fn encode(image: &Image) -> String {
    let mut body = vec![0; image.elements() * ELEMENT_BYTES];
    image.write_body(&mut body);
    let mut text = String::with_capacity(2 * image.bytes());
    for byte in image.header_bytes(0).iter().chain(&body) {
        // Into memory.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Reads what [`encode`] wrote, and checks its digest.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn decode_table(text: &str) -> Result<Image, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    let bytes: Vec<u8> = bytes.collect::<Option<_>>().ok_or("it is not hexadecimal")?;
    let header = bytes.get(..weir_steering::HEADER_BYTES).ok_or("it is cut short")?;
    let body = |_, elements: usize| {
        let length = elements.checked_mul(ELEMENT_BYTES)?;
        Some(bytes.get(header.len()..)?.get(..length)?.to_vec())
    };
    Image::read_from(header, body).map_err(|error| error.to_string())
}

impl<P: Plane> Engine<P> {
    /// `whole`: with headers and bodies.
    pub(super) fn inside(&self, whole: bool) -> Result<Inside, EngineError> {
        let mut tables = Vec::new();
        for (name, service) in &self.services {
            let Some(said) = self.plane.described(service.number).plane()? else { continue };
            let read = self.plane.published(service.number);
            let (image, damaged) = match read {
                Ok(image) => (image, None),
                Err(error) => (None, Some(error.to_string())),
            };
            tables.push(TableSnapshot {
                service: name.clone(),
                method: service.configured.method.name().into(),
                generation: image.as_ref().map_or(service.generation, |i| i.header().generation),
                digest: format!("{:016x}", said.digest),
                flags: image.as_ref().map_or(0, |image| image.header().flags().0),
                states: said.states,
                bytes: self.plane.table_bytes(service.number),
                table: image.as_ref().filter(|_| whole).map(encode),
                damaged,
            });
        }
        Ok(Inside { config: self.config.clone(), file: self.config_path.clone(), tables })
    }
}
