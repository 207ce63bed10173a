//! How commands come to the engine, which sleeps until there is a command or a report. What an engine that is
//! at work can do between two steps of it has a queue of its own.

use super::Command;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};

/// Where commands are sent.
#[derive(Clone, Debug)]
pub struct Sender {
    queue: mpsc::Sender<Command>,
    urgent: mpsc::Sender<Command>,
    bell: Arc<UnixStream>,
}

/// Where commands come out.
#[derive(Debug)]
pub struct Commands {
    queue: mpsc::Receiver<Command>,
    /// None: somebody has [taken](Self::urgent) it.
    urgent: Option<mpsc::Receiver<Command>>,
    bell: Arc<UnixStream>,
    heard: UnixStream,
}

/// A queue for so many commands.
///
/// # Errors
/// If this process has no file descriptor left.
pub fn channel(most: usize) -> io::Result<(Sender, Commands)> {
    let (bell, heard) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    heard.set_nonblocking(true)?;
    let (sender, queue) = mpsc::channel(most);
    let (hurried, urgent) = mpsc::channel(most);
    let bell = Arc::new(bell);
    let sender = Sender { queue: sender, urgent: hurried, bell: Arc::clone(&bell) };
    Ok((sender, Commands { queue, urgent: Some(urgent), bell, heard }))
}

/// Wakes the engine. If there is no room for a byte, it has not even heard of the former ones.
fn ring(mut bell: &UnixStream) {
    let _ = bell.write(&[0]);
}

impl Sender {
    /// What is looked at, and what health checks and the kernel say, waits for no update of a table: the former is
    /// true at any time, and the latter is about where packets go now. Whoever asks for one after the other of two
    /// commands has the answer of the first before.
    fn queue_of(&self, command: &Command) -> &mpsc::Sender<Command> {
        match command {
            Command::Health(_)
            | Command::Network(_)
            | Command::Status(_)
            | Command::Numbers(_)
            | Command::Explain(..)
            | Command::Plan(..)
            | Command::History(_)
            | Command::Text(..)
            | Command::Sample(_)
            | Command::Announced(_)
            | Command::FleetStatus(_)
            | Command::Ping(_) => &self.urgent,
            _ => &self.queue,
        }
    }

    /// Sends a command, when there is room for it.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn send(&self, command: Command) -> Result<(), SendError<Command>> {
        self.queue_of(&command).send(command).await?;
        ring(&self.bell);
        Ok(())
    }

    /// As [`send`](Self::send), for a thread without a runtime.
    ///
    /// # Errors
    /// As above.
    pub fn blocking_send(&self, command: Command) -> Result<(), SendError<Command>> {
        self.queue_of(&command).blocking_send(command)?;
        ring(&self.bell);
        Ok(())
    }

    /// As [`send`](Self::send), if there is room now.
    ///
    /// # Errors
    /// As above, or there is no room.
    pub fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.queue_of(&command).try_send(command)?;
        ring(&self.bell);
        Ok(())
    }
}

impl Commands {
    /// Can be read if there may be a command.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Takes up to `most` commands, `take` each until it says that it is the last one. Returns
    /// whether there will be more.
    pub(super) fn take(&mut self, most: usize, mut take: impl FnMut(Command) -> bool) -> bool {
        // First the bell, then the commands: who comes in between rings in vain, and not unheard.
        self.hear();
        for _ in 0..most {
            let hurried = self.urgent.as_mut().and_then(|urgent| urgent.try_recv().ok());
            match hurried.map_or_else(|| self.queue.try_recv(), Ok) {
                Ok(command) => {
                    if !take(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
        // There may be more.
        ring(&self.bell);
        true
    }

    /// The queue of what is done between the steps of other work; [`take`](Self::take) knows no more of it.
    pub(super) fn urgent(&mut self) -> Option<mpsc::Receiver<Command>> {
        self.urgent.take()
    }

    fn hear(&mut self) {
        let mut bytes = [0; 256];
        loop {
            match self.heard.read(&mut bytes) {
                Ok(all) if all == bytes.len() => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use tokio::sync::oneshot;

    fn rings(commands: &Commands) -> bool {
        let mut waiting = [PollFd::new(commands.bell(), PollFlags::POLLIN)];
        poll(&mut waiting, PollTimeout::ZERO).expect("it can be polled") > 0
    }

    #[test]
    fn the_bell_rings_while_there_may_be_commands() {
        let (sender, mut commands) = channel(100).expect("descriptors");
        assert!(!rings(&commands));
        let send = || {
            let (reply, _) = oneshot::channel();
            sender.try_send(Command::Status(reply)).expect("there is room");
        };
        (0..3).for_each(|_| send());
        assert!(rings(&commands));
        let mut taken = 0;
        let mut take = |commands: &mut Commands| {
            commands.take(2, |_| {
                taken += 1;
                true
            })
        };
        assert!(take(&mut commands) && rings(&commands), "one is left");
        assert!(take(&mut commands) && !rings(&commands));
        send();
        assert!(rings(&commands));
        assert!(take(&mut commands) && !rings(&commands));
        drop(sender);
        assert!(!take(&mut commands), "nobody commands any more");
        assert_eq!(taken, 4);
    }

    #[test]
    fn the_last_command_ends_it() {
        let (sender, mut commands) = channel(4).expect("descriptors");
        sender.try_send(Command::Stop).expect("there is room");
        assert!(!commands.take(4, |command| !matches!(command, Command::Stop)));
    }
}
