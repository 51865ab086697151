//! The delay with which a busy machine runs its processes. The documented slack e is that of a
//! machine with idle time; the additional delay of a busy machine is measured here, apart from
//! everything that is tested.

use std::{
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::Duration,
};

use crate::world::now_us;

/// Wake-ups per measurement: as many as a login needs, with its calls to a store and to another
/// node, on its way through the processes.
const WAKE_UPS: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Meter {
    /// The end and the length of each measurement.
    taken: Mutex<Vec<(u64, u64)>>,
}

fn meter() -> &'static Meter {
    static METER: OnceLock<&'static Meter> = OnceLock::new();
    METER.get_or_init(|| {
        let meter: &'static Meter = Box::leak(Box::default());
        thread::spawn(|| meter.run());
        meter
    })
}

impl Meter {
    fn run(&self) {
        let (ask, asked) = mpsc::sync_channel::<()>(0);
        let (answer, answers) = mpsc::sync_channel::<()>(0);
        thread::spawn(
            move || {
                while asked.recv().is_ok() && answer.send(()).is_ok() {}
            },
        );
        loop {
            let from = now_us();
            for _ in 0..WAKE_UPS / 2 {
                if ask.send(()).is_err() || answers.recv().is_err() {
                    return;
                }
            }
            let to = now_us();
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.push((to, to - from));
            drop(taken);
            thread::sleep(PAUSE);
        }
    }
}

/// Starts measuring; returns the time from which on it measures.
pub(crate) fn watched() -> u64 {
    meter();
    now_us()
}

/// The delay beyond e that the machine may have caused since a moment.
pub(crate) fn late_since(from_us: u64) -> Duration {
    let taken = meter().taken.lock().unwrap_or_else(PoisonError::into_inner);
    let worst = taken
        .iter()
        .filter(|(at, _)| *at >= from_us)
        .map(|it| it.1)
        .max();
    Duration::from_micros(worst.unwrap_or_default())
}
