//! `distlock gateway`: runs a kick-out gateway node, mints tokens to log in with, and sends orders
//! to a running node.

mod admin;
mod admin_client;
mod node;
mod settings;
mod token;

use clap::{Args, Subcommand};

use self::{
    admin::{Ban, Drain, Health, Kick, Lookup, Nodes},
    node::RunNode,
    token::MintToken,
};
use crate::{context::Context, exit::Outcome};

/// Run a gateway node, sign a login token, or ask a running node.
#[derive(Args, Debug)]
pub(crate) struct Gateway {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(Box<RunNode>),
    Token(MintToken),
    Lookup(Lookup),
    Kick(Kick),
    Ban(Ban),
    Drain(Drain),
    Nodes(Nodes),
    Health(Health),
}

impl Gateway {
    /// Whether the command runs a node. The other commands send an order to a node, or mint a
    /// token.
    pub(crate) const fn serves(&self) -> bool {
        matches!(self.action, Action::Run(_))
    }

    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        match self.action {
            Action::Run(node) => Box::pin(node.execute(context)).await,
            Action::Token(token) => token.execute(context),
            Action::Lookup(lookup) => Box::pin(lookup.execute(context)).await,
            Action::Kick(kick) => Box::pin(kick.execute(context)).await,
            Action::Ban(ban) => Box::pin(ban.execute(context)).await,
            Action::Drain(drain) => Box::pin(drain.execute(context)).await,
            Action::Nodes(nodes) => Box::pin(nodes.execute(context)).await,
            Action::Health(health) => Box::pin(health.execute(context)).await,
        }
    }
}
