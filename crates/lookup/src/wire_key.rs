//! Keys in messages.

use crate::wire::{BitReader, BitWriter, MessageError};
use crate::{Key, Octets};
use weir_wire::{FlowKey, Protocol};

/// A key that can be written into a message and read back: what the messages of a map that sends
/// whole keys ask for ([`Filtable`](crate::Filtable)).
pub trait WireKey: Key {
    /// Bits of a key in a message.
    const BITS: usize;

    /// Appends the key.
    fn put(&self, out: &mut BitWriter);

    /// Reads a key.
    ///
    /// # Errors
    /// [`MessageError`] if the message ends before, or the bits are no key.
    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError>;
}

impl WireKey for u64 {
    const BITS: usize = 64;

    fn put(&self, out: &mut BitWriter) {
        out.put(*self, 64);
    }

    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        input.get(64)
    }
}

impl<const N: usize> WireKey for Octets<N> {
    const BITS: usize = 8 * N;

    fn put(&self, out: &mut BitWriter) {
        out.put_bytes(&self.0);
    }

    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        let mut bytes = [0; N];
        input.get_bytes(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Addresses, ports, protocol: 37 bytes.
impl WireKey for FlowKey {
    const BITS: usize = 8 * 37;

    fn put(&self, out: &mut BitWriter) {
        out.put_bytes(&self.src);
        out.put_bytes(&self.dst);
        out.put(self.src_port.into(), 16);
        out.put(self.dst_port.into(), 16);
        out.put(self.protocol.number().into(), 8);
    }

    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        let (mut src, mut dst) = ([0; 16], [0; 16]);
        input.get_bytes(&mut src)?;
        input.get_bytes(&mut dst)?;
        let (src_port, dst_port) = (input.get(16)? as u16, input.get(16)? as u16);
        let protocol = Protocol::from_number(input.get(8)? as u8)
            .ok_or(MessageError::OutOfRange { what: "the protocol of a flow" })?;
        Ok(Self { src, dst, src_port, dst_port, protocol })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<K: WireKey + std::fmt::Debug>(key: K) {
        let mut out = BitWriter::default();
        key.put(&mut out);
        let bytes = out.finish();
        assert_eq!(bytes.len() * 8, K::BITS);
        assert_eq!(K::get(&mut BitReader::new(&bytes)), Ok(key));
        assert!(K::get(&mut BitReader::new(&bytes[1..])).is_err());
    }

    #[test]
    fn keys_come_back_from_messages() {
        comes_back(0x0123_4567_89ab_cdefu64);
        comes_back(Octets(*b"a name"));
        let [src, dst] = ["10.0.0.1:5555", "[2001:db8::2]:53"].map(|text| text.parse().unwrap());
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            comes_back(FlowKey::new(src, dst, protocol));
            comes_back(FlowKey::new(dst, src, protocol));
        }
        let mut other = [0; 37];
        other[36] = 1;
        assert!(FlowKey::get(&mut BitReader::new(&other)).is_err());
    }
}
