//! Messages of an agent that are written before they are sent. What becomes of connections is told so often that each
//! event goes straight into its message: nothing is made for it, and no length is found twice.

use crate::generated::{FromAgent, FromBalancer, Kind as Said};
use crate::message::{Connection, Kind};
use crate::{MOST_OF_A_MESSAGE, MOST_OF_A_WELCOME};
use http::uri::PathAndQuery;
use prost::Message;
use prost::bytes::BufMut;
use std::net::IpAddr;
use tonic::client::Grpc;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{IntoStreamingRequest, Response, Status, Streaming};
use tonic_prost::ProstDecoder;

/// Bytes of an event in a message at most, with its own tag and length.
const EVENT: usize = 40;
/// Bytes of a number at most.
const NUMBER: usize = 10;

/// What `proto/agents.proto` calls these fields.
const EVENTS_OF_FROM_AGENT: u8 = 2;
const FIRST_OF_EVENTS: u8 = 1;
const NEXT_OF_EVENTS: u8 = 2;
const EVENT_OF_EVENTS: u8 = 3;
const KIND_OF_EVENT: u8 = 1;
const CONNECTION_OF_EVENT: u8 = 2;
const ENDPOINT_OF_CONNECTION: u8 = 1;
const CLIENT_OF_CONNECTION: u8 = 2;
const CLIENT_PORT_OF_CONNECTION: u8 = 3;
const PORT_OF_CONNECTION: u8 = 4;

/// A message of an agent, as it goes over the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written(Vec<u8>);

impl From<FromAgent> for Written {
    fn from(said: FromAgent) -> Self {
        Self(said.encode_to_vec())
    }
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes [`Events`](crate::Events), an event at a time.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// With room for so many events.
    pub fn with_room(events: usize) -> Self {
        Self(Vec::with_capacity(events.min(MOST_OF_A_MESSAGE) * EVENT))
    }

    /// What has become of a connection.
    pub fn push(&mut self, kind: Kind, one: Connection) {
        let bytes = &mut self.0;
        let event = begin(bytes, EVENT_OF_EVENTS);
        number(bytes, KIND_OF_EVENT, Said::from(kind) as u64);
        let connection = begin(bytes, CONNECTION_OF_EVENT);
        number(bytes, ENDPOINT_OF_CONNECTION, one.endpoint.into());
        let client = begin(bytes, CLIENT_OF_CONNECTION);
        match one.client.to_canonical() {
            IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
        }
        end(bytes, client);
        number(bytes, CLIENT_PORT_OF_CONNECTION, one.client_port.into());
        number(bytes, PORT_OF_CONNECTION, one.port.unwrap_or(0).into());
        end(bytes, connection);
        end(bytes, event);
    }

    /// The message: these are all events from number `first` on, before `next`.
    pub fn finish(self, first: u64, next: u64) -> Written {
        let mut head = Vec::with_capacity(2 * (1 + NUMBER));
        number(&mut head, FIRST_OF_EVENTS, first);
        number(&mut head, NEXT_OF_EVENTS, next);
        let length = head.len() + self.0.len();
        let mut bytes = Vec::with_capacity(1 + NUMBER + length);
        bytes.push(tag(EVENTS_OF_FROM_AGENT, true));
        varint(&mut bytes, length as u64);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&self.0);
        Written(bytes)
    }
}

/// A field's number, and whether a length comes next or a number.
const fn tag(field: u8, length: bool) -> u8 {
    (field << 3) | if length { 2 } else { 0 }
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A number that is 0 is left out.
fn number(bytes: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        bytes.push(tag(field, false));
        varint(bytes, value);
    }
}

/// Leaves a byte for the length of what follows, which [`end`] writes there: where that is.
fn begin(bytes: &mut Vec<u8>, field: u8) -> usize {
    bytes.push(tag(field, true));
    bytes.push(0);
    bytes.len()
}

/// All that is written so takes less than 128 bytes ([`EVENT`]), so its length is one.
fn end(bytes: &mut [u8], begun: usize) {
    bytes[begun - 1] = (bytes.len() - begun) as u8;
}

/// What is written goes as it is; what a balancer says is read.
#[derive(Clone, Copy, Debug)]
struct AsItIs;

impl Codec for AsItIs {
    type Encode = Written;
    type Decode = FromBalancer;
    type Encoder = Self;
    type Decoder = ProstDecoder<FromBalancer>;

    fn encoder(&mut self) -> Self::Encoder {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for AsItIs {
    type Item = Written;
    type Error = Status;

    fn encode(&mut self, item: Written, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item.0);
        Ok(())
    }
}

/// Begins the session of an agent, as [`BalancerClient::speak`](crate::BalancerClient::speak) does, with messages that
/// are written already.
///
/// # Errors
/// The balancer's, or the channel's.
pub async fn speak(
    channel: Channel,
    messages: impl IntoStreamingRequest<Message = Written>,
) -> Result<Response<Streaming<FromBalancer>>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MOST_OF_A_WELCOME);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static("/weir.agents.v1.Balancer/Speak");
    client.streaming(messages.into_streaming_request(), path, AsItIs).await
}
