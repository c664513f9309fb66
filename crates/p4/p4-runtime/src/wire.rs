//! gRPC without generated code: which path is which request, and messages as bytes, which the thread that has
//! the service reads. So the messages of all clients are decoded one at a time.

use prost::bytes::{Buf, BufMut};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Most bytes of a message. A batch of 65,536 entries fits; so do the messages that gRPC's servers take by
/// default.
pub const MAX_MESSAGE: usize = 4 << 20;

/// Most bytes of a message that sets a pipeline: a program of 16 MiB, and its P4Info.
pub const MAX_PIPELINE: usize = 20 << 20;

/// A method of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    #[expect(missing_docs, reason = "named as in the specification")]
    Write,
    #[expect(missing_docs, reason = "named as in the specification")]
    Read,
    #[expect(missing_docs, reason = "named as in the specification")]
    SetForwardingPipelineConfig,
    #[expect(missing_docs, reason = "named as in the specification")]
    GetForwardingPipelineConfig,
    #[expect(missing_docs, reason = "named as in the specification")]
    StreamChannel,
    #[expect(missing_docs, reason = "named as in the specification")]
    Capabilities,
}

impl Method {
    /// All methods.
    const ALL: [Method; 6] = [
        Method::Write,
        Method::Read,
        Method::SetForwardingPipelineConfig,
        Method::GetForwardingPipelineConfig,
        Method::StreamChannel,
        Method::Capabilities,
    ];

    /// The path of its requests.
    #[must_use]
    pub fn path(self) -> String {
        format!("/p4.v1.P4Runtime/{self:?}")
    }

    /// The method with a path.
    #[must_use]
    pub fn of(path: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.path() == path)
    }

    /// Most bytes of a message.
    #[must_use]
    pub fn limit(self) -> usize {
        match self {
            Method::SetForwardingPipelineConfig => MAX_PIPELINE,
            _ => MAX_MESSAGE,
        }
    }
}

/// Messages as bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; from.remaining()];
        from.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
