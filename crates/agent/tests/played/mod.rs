//! A balancer that a test plays.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use weir_rpc::{Balancer, FromAgent, FromBalancer};

/// What an agent says in a session, and where it is answered.
pub type Session = (Streaming<FromAgent>, mpsc::Sender<Result<FromBalancer, Status>>);

/// Gives the test the sessions that begin.
pub struct Played(pub mpsc::Sender<Session>);

#[tonic::async_trait]
impl Balancer for Played {
    type SpeakStream = ReceiverStream<Result<FromBalancer, Status>>;

    async fn speak(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::SpeakStream>, Status> {
        let (to, answers) = mpsc::channel(16);
        let _ = self.0.send((request.into_inner(), to)).await;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
