//! Property: a held lock can become a ticket. Any client can turn the ticket into a guard, once.

use std::time::Duration;

use distlock_core::{
    ErrorKind, Lease, Locker, OwnerId, ReleaseOutcome, Renewal, Ticket, TicketStep, margin,
};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, acquire_within, expect_busy, inspect_lock, join, now,
        poll_at_most, release_clean, request, sleep, soon, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        tickets::ticket_is_resumed_by_another_client,
        "a ticket is resumed by another client, with the same token, owner and name",
        Tickets
    ),
    case!(
        tickets::ticket_is_resumed_by_another_process,
        "a ticket is resumed by another process",
        Tickets,
        Processes
    ),
    case!(
        tickets::ticket_is_resumed_only_once,
        "a ticket can be resumed once only",
        Tickets
    ),
    case!(
        tickets::one_of_many_resumes_succeeds,
        "of six clients that resume one ticket at once exactly one gets the lock",
        Tickets
    ),
    case!(
        tickets::ticket_excludes_until_resumed,
        "a lock behind a ticket stays locked, and is not renewed",
        Tickets
    ),
    case!(
        tickets::expired_ticket_is_refused,
        "a ticket of an expired lease cannot be resumed",
        Tickets
    ),
    case!(
        tickets::ticket_of_a_taken_over_lock_is_refused,
        "a ticket of a lock that another owner holds by now changes nothing",
        Tickets
    ),
    case!(
        tickets::resumed_guard_is_renewed,
        "a resumed guard is renewed like any other",
        Tickets
    ),
    case!(
        tickets::renewed_ticket_stays_usable,
        "a ticket can be renewed and stays usable",
        Tickets
    ),
    case!(
        tickets::used_ticket_cannot_be_renewed,
        "a ticket that was resumed cannot be renewed",
        Tickets
    ),
    case!(
        tickets::uses_at_the_same_time_are_refused_only_after_the_end,
        "of two uses of one ticket at once none is refused while the ticket holds the lock",
        Tickets
    ),
    case!(
        tickets::late_renewal_leaves_a_resumed_lease,
        "a renewal of a ticket that arrives after the resume leaves the lease of the guard",
        Tickets
    ),
    case!(
        tickets::released_ticket_frees_the_lock,
        "a ticket can be released, once",
        Tickets
    ),
    case!(
        tickets::resumed_guard_can_become_a_ticket_again,
        "a resumed guard can become another ticket, and the first one stays used",
        Tickets
    ),
    case!(
        tickets::invalid_text_is_refused,
        "a text that is not a ticket is refused before the store is asked, and not repeated",
        Tickets
    ),
    case!(
        tickets::text_is_complete_and_debug_hides_the_secret,
        "a ticket survives as text and JSON, and Debug hides its secret",
        Tickets
    ),
    case!(
        tickets::resume_dropped_after_any_poll,
        "a resume that is dropped leaves nothing beyond one lease",
        Tickets
    ),
    case!(
        tickets::becoming_a_ticket_is_no_loss,
        "a watcher of a guard that became a ticket sees a release",
        Tickets
    ),
    case!(
        tickets::missing_tickets_are_unsupported,
        "where there are no tickets, asking for one is Unsupported and the lock is released",
        NoTickets
    ),
];

/// Takes a lock and turns it into a ticket.
async fn acquire_as_ticket(locker: &Locker, name: &str, ttl: Duration) -> Outcome<Ticket> {
    let guard = acquire_free(locker, name, ttl).await?;
    let token = guard.token();
    let ticket = guard.into_ticket().await?;
    ensure_eq!(ticket.token(), token, "the ticket's token");
    ensure_eq!(ticket.name().as_str(), name, "the ticket's name");
    ensure_eq!(ticket.ttl().duration(), ttl, "the ticket's TTL");
    Ok(ticket)
}

async fn ticket_is_resumed_by_another_client(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&one, &name, cx.long_ttl()).await?;
    let fence = guard.fence();
    release_clean(guard).await?;
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    let sent = now();
    let guard = two.resume(&ticket).await?;
    ensure_eq!(guard.token(), ticket.token(), "the token");
    ensure!(guard.token() > fence.token, "tokens rise");
    ensure_eq!(guard.name(), ticket.name(), "the name");
    let most = cx.long_ttl() - margin(cx.long_ttl());
    ensure!(
        guard.remaining() <= most
            && guard.remaining() + now().since(sent) + Duration::from_millis(5) >= most,
        "{:?} remain, the lease starts with the resume",
        guard.remaining()
    );
    expect_busy(&one, &name).await?;
    release_clean(guard).await?;
    release_clean(acquire_free(&one, &name, cx.long_ttl()).await?).await
}

async fn ticket_is_resumed_by_another_process(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let ticket = acquire_as_ticket(&locker, &name, cx.long_ttl()).await?;
    let mut worker = cx.worker().await?;
    let held = worker.resume(ticket.to_string()).await?;
    ensure_eq!(held.token, ticket.token().get(), "the token");
    expect_busy(&locker, &name).await?;
    worker.release().await?;
    release_clean(acquire_free(&locker, &name, cx.long_ttl()).await?).await
}

async fn ticket_is_resumed_only_once(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    let guard = two.resume(&ticket).await?;
    for locker in [&one, &two] {
        expect_error(
            "a second resume",
            locker.resume(&ticket).await,
            &[ErrorKind::NotHeld],
        )?;
    }
    ensure!(guard.is_valid(), "the resumed guard is not disturbed");
    guard.extend(cx.long_ttl()).await?;
    release_clean(guard).await?;
    expect_error(
        "a resume after the release",
        one.resume(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    Ok(())
}

async fn one_of_many_resumes_succeeds(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let ticket = acquire_as_ticket(&locker, &name, cx.long_ttl()).await?;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let (locker, ticket) = (cx.locker().await?, ticket.clone());
        tasks.push(start(async move {
            match locker.resume(&ticket).await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if error.kind() == ErrorKind::NotHeld => Ok(None),
                Err(error) => Err(error.into()),
            }
        }));
    }
    let winners: Vec<_> = join(tasks).await?.into_iter().flatten().collect();
    ensure_eq!(winners.len(), 1, "guards of one ticket");
    for guard in winners {
        ensure!(guard.is_valid(), "the winner is valid");
        release_clean(guard).await?;
    }
    Ok(())
}

async fn ticket_excludes_until_resumed(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, ttl) = (cx.name("a"), cx.kept_ttl());
    let asked = now();
    let ticket = acquire_as_ticket(&one, &name, ttl).await?;
    expect_busy(&one, &name).await?;
    expect_busy(&two, &name).await?;
    // No client resumes the ticket, so its lease expires.
    let guard = acquire_within(&two, &name, cx.freed_within(ttl)).await?;
    ensure!(
        now().since(asked) >= ttl - margin(ttl),
        "granted after {:?} of {ttl:?}",
        now().since(asked)
    );
    ensure!(guard.token() > ticket.token(), "tokens rise");
    release_clean(guard).await
}

async fn expired_ticket_is_refused(cx: Context) -> Outcome {
    let (locker, name, ttl) = (cx.locker().await?, cx.name("a"), cx.short_ttl());
    let ticket = acquire_as_ticket(&locker, &name, ttl).await?;
    sleep(cx.freed_within(ttl)).await;
    expect_error(
        "resume",
        locker.resume(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    expect_error(
        "renewal",
        locker.renew_ticket(&ticket, ttl).await,
        &[ErrorKind::NotHeld],
    )?;
    expect_error(
        "release",
        locker.release_ticket(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    ensure!(
        inspect_lock(&locker, &name).await?.held.is_none(),
        "not revived"
    );
    Ok(())
}

async fn ticket_of_a_taken_over_lock_is_refused(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    two.force_release(&name, ticket.token()).await?;
    let guard = acquire_free(&two, &name, cx.long_ttl()).await?;
    expect_error("resume", one.resume(&ticket).await, &[ErrorKind::NotHeld])?;
    expect_error(
        "renewal",
        one.renew_ticket(&ticket, cx.long_ttl()).await,
        &[ErrorKind::NotHeld],
    )?;
    expect_error(
        "release",
        one.release_ticket(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    let held = inspect_lock(&one, &name).await?.held;
    ensure_eq!(
        held.and_then(|held| held.token),
        Some(guard.token()),
        "the token that stands in the store"
    );
    guard.extend(cx.long_ttl()).await?;
    release_clean(guard).await
}

async fn resumed_guard_is_renewed(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, ttl) = (cx.name("a"), cx.kept_ttl());
    let ticket = acquire_as_ticket(&one, &name, ttl).await?;
    let guard = two.resume(&ticket).await?;
    sleep(cx.freed_within(ttl)).await;
    // The error of `check` names the reason of a loss.
    guard.check()?;
    expect_busy(&one, &name).await?;
    release_clean(guard).await
}

async fn renewed_ticket_stays_usable(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, ttl) = (cx.name("a"), cx.kept_ttl());
    let ticket = acquire_as_ticket(&one, &name, ttl).await?;
    let begin = now();
    while now().since(begin) < 2 * ttl {
        two.renew_ticket(&ticket, ttl).await?;
        expect_busy(&one, &name).await?;
        sleep(ttl / 4).await;
    }
    for wrong in [Duration::ZERO, Duration::from_secs(24 * 60 * 60 + 1)] {
        expect_error(
            "renewal out of range",
            two.renew_ticket(&ticket, wrong).await,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    let guard = two.resume(&ticket).await?;
    ensure_eq!(guard.token(), ticket.token(), "the token");
    release_clean(guard).await
}

async fn used_ticket_cannot_be_renewed(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    let guard = two.resume(&ticket).await?;
    // A renewal that succeeded would shorten the guard's lease.
    expect_error(
        "renewal",
        one.renew_ticket(&ticket, cx.short_ttl()).await,
        &[ErrorKind::NotHeld],
    )?;
    expect_error(
        "release",
        one.release_ticket(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    sleep(cx.freed_within(cx.short_ttl())).await;
    ensure!(guard.is_valid(), "the guard is not disturbed");
    expect_busy(&one, &name).await?;
    release_clean(guard).await
}

/// The number of pairs of concurrent uses. A store with a gap between two steps of one use refuses
/// about half of the pairs.
const PAIRS: usize = 12;

async fn uses_at_the_same_time_are_refused_only_after_the_end(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, ttl) = (cx.name("a"), cx.long_ttl());
    let mut refused = [0; 4];
    for _ in 0..PAIRS {
        let ticket = acquire_as_ticket(&one, &name, ttl).await?;
        let (left, right) = tokio::join!(
            one.renew_ticket(&ticket, ttl),
            two.renew_ticket(&ticket, ttl)
        );
        refused[0] += usize::from(was_refused(left)?) + usize::from(was_refused(right)?);

        // The resume may come first: only the renewal may be refused.
        let (renewed, resumed) = tokio::join!(one.renew_ticket(&ticket, ttl), two.resume(&ticket));
        was_refused(renewed)?;
        let ticket = match resumed {
            Ok(guard) => guard.into_ticket().await?,
            Err(error) if error.kind() == ErrorKind::NotHeld => {
                refused[1] += 1;
                one.force_release(&name, ticket.token()).await?;
                acquire_as_ticket(&one, &name, ttl).await?
            }
            Err(error) => return Err(error.into()),
        };

        let (renewed, released) =
            tokio::join!(one.renew_ticket(&ticket, ttl), two.release_ticket(&ticket));
        was_refused(renewed)?;
        refused[2] += usize::from(was_refused(released)?);
        if inspect_lock(&one, &name).await?.held.is_some() {
            refused[3] += 1;
            one.force_release(&name, ticket.token()).await?;
        }
    }
    let whats = ["renewals", "resumes", "releases", "locks left behind"];
    for (what, refused) in whats.into_iter().zip(refused) {
        ensure_eq!(refused, 0, "{what} refused in {PAIRS} pairs: {refused}");
    }
    // Of a release and a resume exactly one succeeds, and the refused one changes nothing.
    for _ in 0..PAIRS {
        let ticket = acquire_as_ticket(&one, &name, ttl).await?;
        let (released, resumed) = tokio::join!(one.release_ticket(&ticket), two.resume(&ticket));
        match (was_refused(released)?, resumed) {
            (true, Ok(guard)) => release_clean(guard).await?,
            (false, Err(error)) if error.kind() == ErrorKind::NotHeld => {}
            (_, Err(error)) => fail!("both were refused: {error}"),
            (false, Ok(_)) => fail!("released and resumed"),
        }
        release_clean(acquire_free(&one, &name, ttl).await?).await?;
    }
    Ok(())
}

/// Whether a use of a ticket was refused; an error if it failed otherwise.
fn was_refused(answer: distlock_core::Result<()>) -> Outcome<bool> {
    match answer {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotHeld => Ok(true),
        Err(error) => Err(error.into()),
    }
}

async fn late_renewal_leaves_a_resumed_lease(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    one.renew_ticket(&ticket, cx.long_ttl()).await?;
    let guard = two.resume(&ticket).await?;
    for late in [cx.short_ttl(), 3 * cx.long_ttl()] {
        expect_error(
            "a late renewal",
            one.renew_ticket(&ticket, late).await,
            &[ErrorKind::NotHeld],
        )?;
        let held = inspect_lock(&one, &name).await?.held;
        let left = held.and_then(|held| held.expires_in);
        ensure!(
            left.is_some_and(|left| left > cx.short_ttl() && left <= cx.long_ttl()),
            "{left:?} are left after a late renewal with a TTL of {late:?}"
        );
    }
    release_clean(guard).await
}

async fn released_ticket_frees_the_lock(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    two.release_ticket(&ticket).await?;
    release_clean(acquire_free(&one, &name, cx.long_ttl()).await?).await?;
    expect_error(
        "a second release",
        two.release_ticket(&ticket).await,
        &[ErrorKind::NotHeld],
    )?;
    expect_error("resume", two.resume(&ticket).await, &[ErrorKind::NotHeld])?;
    Ok(())
}

async fn resumed_guard_can_become_a_ticket_again(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let first = acquire_as_ticket(&one, &name, cx.long_ttl()).await?;
    let second = two.resume(&first).await?.into_ticket().await?;
    ensure_eq!(second.token(), first.token(), "the token");
    ensure!(
        second.to_string() != first.to_string(),
        "one secret for two tickets"
    );
    expect_error(
        "the first ticket again",
        one.resume(&first).await,
        &[ErrorKind::NotHeld],
    )?;
    release_clean(one.resume(&second).await?).await
}

async fn invalid_text_is_refused(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let mut garbage: Vec<String> = [
        "",
        " ",
        "ticket",
        "dlt1.",
        "dlt1.e30",
        "dlt9.e30",
        "{}",
        "🔒",
        "dlt1.////",
        "dlt1.\0",
    ]
    .map(Into::into)
    .into();
    let text = acquire_as_ticket(&locker, &name, cx.long_ttl())
        .await?
        .to_string();
    for at in (1..text.len()).step_by(7) {
        garbage.push(text[..at].to_owned());
    }
    garbage.push(text.to_uppercase());
    garbage.push(format!("{text}{text}"));
    garbage.push(text.chars().rev().collect());
    ensure!(
        inspect_lock(&locker, &name).await?.held.is_some(),
        "the lock is still there"
    );
    for text in garbage {
        let answer = text.parse::<Ticket>();
        let error = expect_error(
            &format!("ticket {text:?}"),
            answer,
            &[ErrorKind::InvalidArgument, ErrorKind::InvalidName],
        )?;
        ensure!(
            text.len() < 8 || !error.to_string().contains(&text),
            "the error repeats {text:?}"
        );
    }
    Ok(())
}

async fn text_is_complete_and_debug_hides_the_secret(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("tricky 'ñ' 🔒 / %"));
    let ticket = acquire_as_ticket(&locker, &name, cx.long_ttl()).await?;
    let text = ticket.to_string();
    ensure!(
        text.is_ascii() && !text.contains(char::is_whitespace),
        "{text:?} does not survive a shell"
    );
    let json = serde_json::to_string(&ticket).map_err(|error| error.to_string())?;
    let back: Ticket = serde_json::from_str(&json).map_err(|error| error.to_string())?;
    ensure!(
        back == ticket && back.to_string() == text,
        "a ticket changed on its way through JSON"
    );
    let shown = format!("{ticket:?}");
    ensure!(
        !shown.contains(&text) && !shown.contains(&text[8..]),
        "Debug shows the secret: {shown}"
    );
    let guard = locker.resume(&format!("  {text}\n").parse()?).await?;
    release_clean(guard).await
}

async fn resume_dropped_after_any_poll(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let ttl = cx.short_ttl();
    let mut names = Vec::new();
    for polls in 0..8 {
        let name = cx.name(&polls.to_string());
        let ticket = acquire_as_ticket(&one, &name, ttl).await?;
        drop(poll_at_most(polls, two.resume(&ticket)).await);
        names.push(name);
    }
    for name in names {
        release_clean(acquire_within(&one, &name, cx.freed_within(ttl)).await?).await?;
    }
    Ok(())
}

async fn becoming_a_ticket_is_no_loss(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let watch = guard.watch();
    let answer = guard.into_ticket().await;
    let ended = soon("the watcher sees the end", watch.ended()).await?;
    ensure_eq!(ended, distlock_core::Ended::Released, "what a watcher saw");
    ensure!(!watch.is_valid(), "the guard is gone");
    match locker.resume(&answer?).await {
        Ok(guard) => release_clean(guard).await,
        Err(error) => fail!("the ticket cannot be resumed: {error}"),
    }
}

async fn missing_tickets_are_unsupported(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let watch = guard.watch();
    let answer = guard.into_ticket().await;
    expect_error("into_ticket", answer, &[ErrorKind::Unsupported])?;
    let ended = soon("the watcher sees the end", watch.ended()).await?;
    ensure_eq!(ended, distlock_core::Ended::Released, "what a watcher saw");
    release_clean(acquire_within(&locker, &name, SOON).await?).await?;
    // The backend itself must also refuse a renewal that issues or redeems a ticket.
    let backend = cx.backend().await?;
    let wanted = request(&name, OwnerId::new(), cx.long_ttl())?;
    let Some(grant) = backend.try_acquire(&wanted).await?.acquired() else {
        fail!("the lock should be free");
    };
    let owner = grant.owner_after(&wanted);
    let lease = Lease::new(wanted.name, owner, Some(grant.token));
    let nonce = *OwnerId::new().as_uuid();
    let mut by_ticket = lease.clone();
    by_ticket.nonce = Some(nonce);
    for (lease, step) in [
        (&lease, TicketStep::Issue(nonce)),
        (&by_ticket, TicketStep::Redeem),
        (&by_ticket, TicketStep::Keep),
    ] {
        let mut renewal = Renewal::plain(wanted.ttl);
        renewal.ticket = step;
        let answer = backend.renew(lease, &renewal).await;
        expect_error("a renewal with a ticket", answer, &[ErrorKind::Unsupported])?;
    }
    let answer = backend.release(&by_ticket).await;
    expect_error("a release by ticket", answer, &[ErrorKind::Unsupported])?;
    match backend.release(&lease).await? {
        ReleaseOutcome::Released { .. } => Ok(()),
        ReleaseOutcome::NotHeld => fail!("the refusal cost the lock"),
    }
}
