//! Bodies of requests by HTTP/2 that nobody reads to their end, as of a request that is refused by its head: they are
//! read before the answer is sent. A server that answers earlier and does not want the rest has to break the stream off
//! (RFC 9113, section 8.1), and clients that meet that before they have looked at the answer take it for an error and
//! never see it (curl does). So what does not end in time, or is too much, is answered then, and read on for a while:
//! whoever sends finds the answer first.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// For what nobody wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of it: as many as the largest body that somebody else may send.
const MOST: usize = super::MOST_TEXT;
/// For what comes when the answer is under way: whoever waits for what it is to send next does not look for answers.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// A body that is given back if whoever has it lets it go before its end.
#[derive(Debug)]
pub(super) struct Lent<B: Body + Unpin> {
    body: Option<B>,
    back: Option<oneshot::Sender<B>>,
}

/// Where a body comes back to.
#[derive(Debug)]
pub(super) struct Rest<B>(oneshot::Receiver<B>);

impl<B: Body + Unpin> Lent<B> {
    pub fn of(body: B) -> (Self, Rest<B>) {
        let (back, rest) = oneshot::channel();
        (Self { body: Some(body), back: Some(back) }, Rest(rest))
    }
}

impl<B: Body + Unpin> Body for Lent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body + Unpin> Drop for Lent<B> {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(back)) = (unread, self.back.take()) {
            // Nobody waits for it if the answer was there earlier.
            let _ = back.send(body);
        }
    }
}

impl<B> Rest<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    /// Reads what was left, if it was, within bounds, and what is more than that beside. Whoever still has the body
    /// goes on reading it.
    pub async fn read(mut self) {
        let Ok(mut body) = self.0.try_recv() else { return };
        if !matches!(timeout(PATIENCE, pass(&mut body, MOST)).await, Ok(true)) {
            tokio::spawn(async move { timeout(AFTERWARDS, pass(&mut body, usize::MAX)).await });
        }
    }
}

/// Reads a body of so many bytes at most; whether it has come to its end.
async fn pass<B: Body<Data = Bytes> + Unpin>(body: &mut B, most: usize) -> bool {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > most {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;

    #[tokio::test]
    async fn what_is_let_go_comes_back_and_what_was_read_does_not() {
        let (lent, mut rest) = Lent::of(Full::new(Bytes::from_static(b"words")));
        drop(lent);
        assert_eq!(rest.0.try_recv().unwrap().size_hint().exact(), Some(5));

        let (lent, mut rest) = Lent::of(Full::new(Bytes::from_static(b"words")));
        assert_eq!(lent.size_hint().exact(), Some(5));
        assert_eq!(lent.collect().await.unwrap().to_bytes(), Bytes::from_static(b"words"));
        assert!(rest.0.try_recv().is_err());

        // Whoever has it still is not waited for.
        let (lent, rest) = Lent::of(Full::new(Bytes::from_static(b"words")));
        rest.read().await;
        drop(lent);
    }

    #[tokio::test]
    async fn too_much_is_not_the_end() {
        let words = || Full::new(Bytes::from_static(b"words"));
        assert!(pass(&mut words(), 5).await);
        assert!(!pass(&mut words(), 4).await);
    }
}
