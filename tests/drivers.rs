//! Tests that the table of drivers and the documents that list the drivers agree.

use std::{collections::BTreeSet, fs, path::Path};

use distlock::{Registry, backend::Driver};

/// The lines of a file of this checkout.
fn lines(path: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(str::to_owned).collect()
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// The words of a text that are between backquotes.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The pages about stores, one after the other.
fn pages() -> Vec<String> {
    let mut pages = lines("docs/backends.md");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stores");
    for page in fs::read_dir(folder).unwrap() {
        pages.extend(lines(page.unwrap().path().to_str().unwrap()));
    }
    pages
}

fn is_heading(line: &str) -> bool {
    line.starts_with("# ") || line.starts_with("## ")
}

/// The part of the pages whose heading names a URL of this driver.
fn section<'a>(pages: &'a [String], driver: &dyn Driver) -> &'a [String] {
    let scheme = driver.schemes()[0];
    let end = if scheme.ends_with('+') { "" } else { ":" };
    let scheme = format!("`{scheme}{end}");
    let start = pages
        .iter()
        .position(|line| is_heading(line) && line.contains(&scheme))
        .unwrap_or_else(|| panic!("no page of a store has {scheme}`"));
    let after = &pages[start + 1..];
    let length = after.iter().position(|line| is_heading(line));
    &after[..length.unwrap_or(after.len())]
}

#[test]
fn each_option_stands_in_the_documentation_of_its_backend_with_its_help_and_default() {
    let pages = pages();
    let registry = Registry::builtin();
    for driver in registry.drivers().iter() {
        let rows: Vec<_> = section(&pages, driver)
            .iter()
            .filter_map(|line| cells(line))
            .filter(|cells| cells.len() == 3)
            .collect();
        for option in driver.options() {
            // The option that every backend has is documented in a section of its own.
            if option.name == "connect_timeout" {
                continue;
            }
            let row = rows
                .iter()
                .find(|cells| quoted(cells[0]).contains(option.name))
                .unwrap_or_else(|| panic!("{}: no row for `{}`", driver.name(), option.name));
            assert_eq!(row[1], option.help, "{}: {}", driver.name(), option.name);
            let default = row[2].trim_matches('`');
            let expected = option.default.trim_matches('`');
            assert_eq!(default, expected, "{}: {}", driver.name(), option.name);
        }
        let known: BTreeSet<_> = driver.options().iter().map(|option| option.name).collect();
        let others: BTreeSet<_> = registry
            .drivers()
            .iter()
            .flat_map(|other| other.options().iter().map(|option| option.name))
            .collect();
        for cells in &rows {
            for name in quoted(cells[0]) {
                let shown = known.contains(name) || others.contains(name);
                assert!(shown, "{}: `{name}` is no option", driver.name());
            }
        }
    }
}

#[test]
fn the_configurations_of_the_pages_have_options_of_their_stores() {
    let pages = pages().join("\n");
    let registry = Registry::builtin();
    let mut count = 0;
    for rest in pages.split("```toml\n").skip(1) {
        let block = rest.split("```").next().unwrap();
        let file: toml::Table = toml::from_str(block).unwrap_or_else(|e| panic!("{block}: {e}"));
        for table in ["backend", "records"]
            .into_iter()
            .filter_map(|it| file.get(it))
        {
            let url = table["url"].as_str().unwrap();
            let (scheme, _) = url.split_once(':').unwrap();
            let mut drivers = registry.drivers().iter();
            let driver = drivers.find(|it| it.schemes().contains(&scheme));
            let driver = driver.unwrap_or_else(|| panic!("no driver opens {url}"));
            for key in table.as_table().unwrap().keys() {
                // An option that may be given several times is a list.
                let name = if key == "members" { "member" } else { key };
                let is_known = driver.options().iter().any(|option| option.name == name);
                assert!(key == "url" || is_known, "{url} has no option {key}");
            }
            count += 1;
        }
    }
    assert!(count >= 8, "{count} configurations");
}

#[test]
fn the_readme_lists_each_scheme_and_no_other() {
    let readme = lines("README.md");
    let start = readme.iter().position(|line| line == "## Backends");
    let table: Vec<_> = readme[start.expect("a section `Backends`")..]
        .iter()
        .filter_map(|line| cells(line))
        .take_while(|cells| cells.len() > 1)
        .collect();
    let listed: BTreeSet<_> = table[1..]
        .iter()
        .flat_map(|cells| quoted(cells[0]))
        .filter_map(|url| {
            let of_wrapper = url.strip_suffix("+URL");
            let scheme = of_wrapper.or_else(|| Some(url.split_once(':')?.0));
            scheme.map(str::to_owned)
        })
        .collect();
    let registry = Registry::builtin();
    for driver in registry.drivers().iter() {
        for scheme in driver.schemes() {
            // This scheme is only another spelling of a scheme that the table has.
            if *scheme != "postgresql" {
                let stem = scheme.trim_end_matches('+');
                assert!(listed.contains(stem), "README.md does not list {scheme}:");
            }
        }
    }
    for scheme in listed {
        let mut drivers = registry.drivers().iter();
        let driver = drivers.find(|it| {
            it.schemes()
                .iter()
                .any(|it| it.trim_end_matches('+') == scheme)
        });
        assert!(driver.is_some(), "no driver opens {scheme}:");
    }
}
