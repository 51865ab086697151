//! The frame of every page, and of every chart in a page.

use super::{style, svg::Svg, text::escape};

/// A whole page with the given body. `stores` are keys and products; each store gets a colour.
pub(crate) fn wrap_in_page(title: &str, stores: &[(String, String)], body: &str) -> String {
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
        style::colour_properties(stores, false),
        style::DARK,
        style::colour_properties(stores, true),
        style::PAGE,
        style::CHART,
    )
}

/// A chart as HTML, with its title and its note as text above the drawing.
pub(crate) fn chart_html(svg: &Svg) -> String {
    format!(
        "<figure><figcaption>{}<span>{}</span></figcaption>{}</figure>",
        escape(&svg.title),
        escape(&svg.note),
        svg.inline()
    )
}
