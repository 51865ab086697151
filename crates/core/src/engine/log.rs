//! What the keeper has to say is written by a thread of its own: whoever takes the log may be slow,
//! or never come back, and leases are kept all the same.

use std::{
    cell::{Cell, OnceCell},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::mpsc::{self, SyncSender},
    thread,
};

use tokio::sync::oneshot;
use tracing::{Span, level_filters::LevelFilter};

/// This many lines wait for who takes the log, in a few megabytes. Those beyond are counted only.
const ROOM: usize = 4096;

type Line = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Set where nobody may wait for the log.
    static DESK: OnceCell<Rc<Desk>> = const { OnceCell::new() };
}

/// Where a thread leaves its lines. Dropped with the thread, and then what is left is written and
/// the writer ends.
#[derive(Default)]
struct Desk {
    lines: OnceCell<SyncSender<Line>>,
    /// Lines that had no room since the last one that had.
    missed: Cell<u64>,
}

/// From now on this thread's lines are written by another, which is started by the first of them.
pub(crate) fn written_elsewhere() {
    DESK.with(|desk| drop(desk.set(Rc::default())));
}

/// Writes a line, at once or where this thread leaves its lines.
pub(crate) fn write(line: impl FnOnce() + Send + 'static) {
    match desk() {
        Some(desk) => desk.leave(line),
        None => line(),
    }
}

/// As [`write`], for lines that hardly anybody takes: those that nobody does take no room.
pub(crate) fn debug(line: impl FnOnce() + Send + 'static) {
    if LevelFilter::current() >= LevelFilter::DEBUG {
        write(line);
    }
}

/// Resolves once everything that this thread left is written, or there was no room to ask for that.
pub(crate) async fn written() {
    let (done, written) = oneshot::channel::<()>();
    if let Some(desk) = desk().filter(|desk| desk.lines.get().is_some()) {
        desk.leave(move || drop(done));
    } else {
        drop(done);
    }
    let _ = written.await;
}

/// None as well on a thread that is at its end: a lock that is let go of there is no reason to
/// panic.
fn desk() -> Option<Rc<Desk>> {
    DESK.try_with(|desk| desk.get().cloned()).ok().flatten()
}

impl Desk {
    fn leave(&self, line: impl FnOnce() + Send + 'static) {
        let lines = match self.lines.get() {
            Some(lines) => lines,
            None => match start() {
                Ok(lines) => self.lines.get_or_init(|| lines),
                Err(_) => return line(),
            },
        };
        let (span, missed) = (Span::current(), self.missed.get());
        let in_its_place = move || {
            if missed > 0 {
                tracing::warn!(missed, "the log was not taken, and lines had no room");
            }
            span.in_scope(line);
        };
        self.missed
            .set(match lines.try_send(Box::new(in_its_place)) {
                Ok(()) => 0,
                Err(_) => missed + 1,
            });
    }
}

fn start() -> io::Result<SyncSender<Line>> {
    let (lines, inbox) = mpsc::sync_channel::<Line>(ROOM);
    thread::Builder::new()
        .name("distlock-log".into())
        .spawn(move || {
            for line in inbox {
                // A subscriber that panics costs its line, not those after it.
                let _ = catch_unwind(AssertUnwindSafe(line));
            }
        })?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::{
        fmt::Debug,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
        subscriber::{self, DefaultGuard},
    };

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// Tells when the thread ends that it was left on.
    struct Ended(mpsc::Sender<()>);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    thread_local! {
        static LEFT: OnceCell<Ended> = const { OnceCell::new() };
    }

    #[test]
    fn who_does_not_take_the_log_holds_up_nobody_and_costs_no_memory() {
        let (go_on, stall) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let speaker = thread::spawn(move || {
            written_elsewhere();
            write(move || {
                LEFT.with(|left| drop(left.set(Ended(ended))));
                stalled.send(()).unwrap();
                let _ = stall.recv_timeout(SOON * 2);
                panic!("a subscriber that panics");
            });
            is_stalled.recv_timeout(SOON).unwrap();
            for _ in 0..ROOM + 7 {
                let count = Arc::clone(&count);
                write(move || {
                    count.fetch_add(1, SeqCst);
                });
            }
            desk().unwrap().missed.get()
        });
        // What nobody takes keeps the thread that said it from nothing, not even from its end.
        assert_eq!(speaker.join().unwrap(), 7);
        assert_eq!(Arc::strong_count(&written), ROOM + 1);
        assert_eq!(written.load(SeqCst), 0);
        drop(go_on);
        has_ended.recv_timeout(SOON).unwrap();
        assert_eq!(written.load(SeqCst), ROOM);
    }

    /// Hears how many lines had no room.
    struct Missed(mpsc::Sender<u64>);

    impl Visit for &Missed {
        fn record_u64(&mut self, field: &Field, value: u64) {
            assert_eq!(field.name(), "missed");
            self.0.send(value).unwrap();
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl Subscriber for Missed {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut &*self);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    thread_local! {
        static HEARD: OnceCell<DefaultGuard> = const { OnceCell::new() };
    }

    #[tokio::test]
    async fn what_had_no_room_is_counted_before_the_next_line() {
        let (go_on, stall) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        let (missed, heard) = mpsc::channel();
        written_elsewhere();
        write(move || {
            HEARD.with(|here| drop(here.set(subscriber::set_default(Missed(missed)))));
            stalled.send(()).unwrap();
            let _ = stall.recv_timeout(SOON);
        });
        is_stalled.recv_timeout(SOON).unwrap();
        let (last, is_last) = mpsc::channel();
        for nth in 1..=ROOM + 7 {
            let last = last.clone();
            write(move || last.send(nth).unwrap());
        }
        drop(go_on);
        while is_last.recv_timeout(SOON).unwrap() < ROOM {}
        assert!(heard.try_recv().is_err());
        written().await;
        assert_eq!(heard.try_recv(), Ok(7));
        written().await;
        assert!(heard.try_recv().is_err());
    }

    #[tokio::test]
    async fn lines_that_nobody_takes_are_left_out() {
        let (wrote, written_for) = mpsc::channel();
        let say = |nth| {
            let wrote = wrote.clone();
            debug(move || wrote.send(nth).unwrap());
        };
        written_elsewhere();
        say(1);
        // As for the whole process: the writer is another thread.
        let heard = subscriber::set_default(Missed(mpsc::channel().0));
        say(2);
        written().await;
        assert_eq!(written_for.try_iter().collect::<Vec<_>>(), [2]);
        drop(heard);
    }

    #[tokio::test]
    async fn lines_keep_their_order_and_are_waited_for() {
        written_elsewhere();
        written().await;
        let told = Arc::new(AtomicUsize::new(0));
        for nth in 0..100 {
            let told = Arc::clone(&told);
            write(move || assert_eq!(told.fetch_add(1, SeqCst), nth));
        }
        written().await;
        assert_eq!(told.load(SeqCst), 100);
    }
}
