//! Tables that were changed by hand give errors with the documented code, the fault and the remedy.
//! No such error counts as a bug (70).

use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
};

use crate::support::{Finished, Home, finish};

/// Commands that must all end with the error.
const COMMANDS: [&[&str]; 4] = [
    &["acquire", "job", "--ttl", "1m", "--wait", "0"],
    &["list"],
    &["inspect", "job"],
    &["force-release", "job", "--token", "5"],
];

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

/// Makes the tables, takes a lock, and returns the ticket of the lock.
fn make_tables_and_lock(home: &Home, url: &str) -> String {
    let taken = run(home, url, &["acquire", "job", "--ttl", "10m"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    taken.stdout.trim().to_owned()
}

fn release(home: &Home, url: &str, ticket: &str) -> Finished {
    finish(home.bare(["release"]).env("DISTLOCK_BACKEND", url), ticket)
}

/// Checks that the command which the error names repairs the tables, and that a held lock stays
/// held.
fn assert_mended_by_migrate(home: &Home, url: &str, empty: impl FnOnce()) {
    let ticket = make_tables_and_lock(home, url);
    empty();
    // Only a few commands are tried: on MySQL and MariaDB each waits a while, because another
    // process may be creating the tables.
    for command in [COMMANDS[0], &["doctor"]] {
        let refused = run(home, url, command);
        refused.assert_failed(78, "has an empty table distributed_meta");
        refused.assert_failed(78, "run `distlock migrate");
    }
    let migrated = run(home, url, &["migrate"]);
    assert_eq!(migrated.code, 0, "{migrated:?}");
    let busy = ["run", "job", "--wait", "0", "--", "echo", "ran"];
    run(home, url, &busy).assert_failed(75, "busy");
    let released = release(home, url, &ticket);
    assert_eq!(released.code, 0, "{released:?}");
}

/// Checks that all commands refuse the tables. A trigger or a rule could grant a lock twice, or
/// hide that a release failed.
fn assert_refused_by_all(home: &Home, url: &str, says: &str) {
    for command in COMMANDS.into_iter().chain([&["doctor"][..], &["migrate"]]) {
        let refused = run(home, url, command);
        refused.assert_failed(78, says);
        refused.assert_failed(78, "drop them");
    }
}

#[test]
fn an_emptied_meta_table_is_mended_by_the_command_that_the_error_names() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    assert_mended_by_migrate(&home, &url, || {
        home.sql("DELETE FROM distributed_meta");
    });
    let server = PostgresServer::start().unwrap();
    assert_mended_by_migrate(&home, &server.url(), || {
        server.sql("DELETE FROM distributed_meta").unwrap();
    });
    for product in Product::ALL {
        let server = MySqlServer::start(product).unwrap();
        assert_mended_by_migrate(&home, &server.url(), || {
            server.sql("DELETE FROM distributed_meta").unwrap();
        });
    }
}

#[test]
fn triggers_of_sqlite_are_78() {
    for event in ["BEFORE UPDATE", "BEFORE INSERT", "AFTER UPDATE"] {
        let home = Home::new();
        let url = format!("sqlite:{}", home.store().display());
        let ticket = make_tables_and_lock(&home, &url);
        home.sql(&format!(
            "CREATE TRIGGER swallow {event} ON distributed_lock BEGIN SELECT RAISE(IGNORE); END"
        ));
        let says =
            "the triggers and rules of distributed_lock are the trigger swallow instead of none";
        assert_refused_by_all(&home, &url, says);
        // The error must not say that the lock belongs to another ticket.
        release(&home, &url, &ticket).assert_failed(78, says);
        home.sql("DROP TRIGGER swallow");
        let released = release(&home, &url, &ticket);
        assert_eq!(released.code, 0, "{released:?}");
    }
}

#[test]
fn triggers_and_rules_of_postgres_are_78() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    let url = server.url();
    let ticket = make_tables_and_lock(&home, &url);
    let function =
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'";
    server.sql(function).unwrap();
    let trigger = |name: &str, when: &str, table: &str| {
        (
            format!(
                "CREATE TRIGGER {name} {when} ON distributed_{table} FOR EACH ROW EXECUTE \
                FUNCTION swallow()"
            ),
            format!("DROP TRIGGER {name} ON distributed_{table}"),
            format!("rules of distributed_{table} are the trigger {name} instead of none"),
        )
    };
    let rule = |what: &str| {
        (
            format!("CREATE RULE mine AS ON {what}"),
            "DROP RULE mine ON distributed_lock".to_owned(),
            "rules of distributed_lock are the rule mine instead of none".to_owned(),
        )
    };
    for (make, drop, says) in [
        trigger("swallow", "BEFORE UPDATE", "lock"),
        trigger("swallow", "BEFORE INSERT", "record"),
        rule("UPDATE TO distributed_lock DO INSTEAD NOTHING"),
        rule("INSERT TO distributed_lock DO ALSO NOTHING"),
        rule("DELETE TO distributed_lock DO INSTEAD NOTHING"),
    ] {
        server.sql(&make).unwrap();
        assert_refused_by_all(&home, &url, &says);
        release(&home, &url, &ticket).assert_failed(78, &says);
        server.sql(&drop).unwrap();
    }
    // One of these triggers fires too late to change anything, and the other trigger is disabled.
    for statement in [
        "CREATE TRIGGER audits AFTER UPDATE ON distributed_lock FOR EACH ROW EXECUTE FUNCTION \
        swallow()",
        "CREATE TRIGGER sleeps BEFORE UPDATE ON distributed_lock FOR EACH ROW EXECUTE FUNCTION \
        swallow()",
        "ALTER TABLE distributed_lock DISABLE TRIGGER sleeps",
    ] {
        server.sql(statement).unwrap();
    }
    let released = release(&home, &url, &ticket);
    assert_eq!(released.code, 0, "{released:?}");
}

#[test]
fn triggers_of_mysql_and_mariadb_are_78() {
    for product in Product::ALL {
        let (home, server) = (Home::new(), MySqlServer::start(product).unwrap());
        let url = server.url();
        let ticket = make_tables_and_lock(&home, &url);
        for (what, table) in [
            (
                "UPDATE ON distributed_lock FOR EACH ROW SET NEW.holder_id = OLD.holder_id",
                "lock",
            ),
            (
                "INSERT ON distributed_record FOR EACH ROW SET NEW.version = 7",
                "record",
            ),
        ] {
            server
                .sql(&format!("CREATE TRIGGER mine BEFORE {what}"))
                .unwrap();
            let says = format!("rules of distributed_{table} are the trigger mine instead of none");
            assert_refused_by_all(&home, &url, &says);
            server.sql("DROP TRIGGER mine").unwrap();
        }
        let released = release(&home, &url, &ticket);
        assert_eq!(released.code, 0, "{product:?}: {released:?}");
    }
}

/// A row that cannot be read is reported. The other rows can still be used.
#[test]
fn infinite_times_of_postgres_are_69_or_mean_nothing() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    let url = server.url();
    let ticket = make_tables_and_lock(&home, &url);
    let set = |column: &str, time: &str| {
        let set = format!("UPDATE distributed_lock SET {column} = {time}");
        server.sql(&set).unwrap();
    };
    set("expires_at", "'infinity'");
    for command in COMMANDS {
        let refused = run(&home, &url, command);
        refused.assert_failed(
            69,
            "its expires_at is infinite, so the row was changed by hand",
        );
    }
    let other = run(&home, &url, &["run", "other", "-n", "--", "echo", "ran"]);
    assert_eq!((other.code, &*other.stdout), (0, "ran\n"), "{other:?}");
    set("expires_at", "clock_timestamp() + interval '10 minutes'");
    // The first column is only for display, and the second column is only a hint.
    for column in ["acquired_at", "hint_until"] {
        set(column, "'infinity'");
        let busy = ["run", "job", "--wait", "0", "--", "echo", "ran"];
        run(&home, &url, &busy).assert_failed(75, "busy");
        let shown = run(&home, &url, &["inspect", "job", "--json"]).json();
        assert_eq!(shown["state"], "held", "{shown}");
        assert!(shown["acquired_at"].is_null(), "{shown}");
    }
    // This lease has ended, so the lock is free.
    set("expires_at", "'-infinity'");
    let taken = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((taken.code, &*taken.stdout), (0, "ran\n"), "{taken:?}");
    release(&home, &url, &ticket).assert_failed(76, "was released");
    set("expires_at", "'-infinity', holder_id = gen_random_uuid()");
    let examined = run(&home, &url, &["doctor"]);
    assert!(examined.stdout.contains("2 stale"), "{examined:?}");
}

#[test]
fn numbers_that_can_be_no_token_are_69() {
    let says = |done: &Finished| {
        assert_eq!(done.code, 69, "{done:?}");
        let told = ["out of range", "is negative"];
        assert!(
            told.iter().any(|told| done.stderr.contains(told)),
            "{done:?}"
        );
    };
    for token in ["-5", "9223372036854775807"] {
        let set = format!("UPDATE distributed_lock SET token = {token}");
        let home = Home::new();
        let url = format!("sqlite:{}", home.store().display());
        let ticket = make_tables_and_lock(&home, &url);
        home.sql(&format!("PRAGMA ignore_check_constraints = 1; {set}"));
        for command in COMMANDS {
            says(&run(&home, &url, command));
        }
        // The store compares the token with that of the ticket, and finds another one.
        let says_lost = "the lock of this ticket";
        release(&home, &url, &ticket).assert_failed(76, says_lost);
        for product in Product::ALL {
            let server = MySqlServer::start(product).unwrap();
            let ticket = make_tables_and_lock(&home, &server.url());
            server.sql(&set).unwrap();
            for command in COMMANDS {
                says(&run(&home, &server.url(), command));
            }
            release(&home, &server.url(), &ticket).assert_failed(76, says_lost);
        }
    }
}
