//! The frame of every page, and of every figure in it.

use super::{style, svg::Svg, text::escape};

/// A page around a body. `stores` are keys and products; each store has a colour.
pub(crate) fn shell(title: &str, stores: &[(String, String)], body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n:root{{{}{}}}\n\
         @media(prefers-color-scheme:dark){{:root{{{}{}}}}}\n{}{}</style>\n</head>\n\
         <body>\n<main>\n\
         {body}</main>\n</body>\n</html>\n",
        escape(title),
        style::LIGHT,
        style::colours(stores, false),
        style::DARK,
        style::colours(stores, true),
        style::PAGE,
        style::FIGURE,
    )
}

/// A figure with its title as text of the page.
pub(crate) fn figure(svg: &Svg) -> String {
    format!(
        "<figure><figcaption>{}<span>{}</span></figcaption>{}</figure>",
        escape(&svg.title),
        escape(&svg.note),
        svg.inline()
    )
}
