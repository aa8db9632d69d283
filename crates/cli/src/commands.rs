//! Dispatch of each command to its implementation.

use std::io::{self, IsTerminal, Read};

use clap::Parser;
use runway_client::cluster::Cluster;
use runway_client::target::Kind;
use runway_client::text::Look;
use runway_manifests::{self as manifests, Component, console};
use runway_operator::client::ClientArgs;

use crate::answer::{Answer, Error};
use crate::args::{
    AsyaSubcommand, Command, CommandLine, ConsoleCommand, ControllerCommand, KitCommand, LlamaStackCommand,
    ProviderCommand,
};
use crate::install::args::{ConsoleInstallArgs, InstallArgs, RemoveArgs};
use crate::install::{self, apply, remove, report};
use crate::terminal::Terminal;
use crate::verbs::{self, change, chat, deploy, explain, kit, logs, look, migrate, offline, top};
use crate::{check, complete, support_bundle, ui, version};

/// Runs a command line.
///
/// # Errors
/// The command fails; the error names the cause.
pub async fn run(line: &CommandLine, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let connect = async || {
        Box::pin(Cluster::connect(&line.client))
            .await
            .map_err(verbs::Error::from)
    };
    let follow = async || {
        Box::pin(Cluster::connect_to_follow(&line.client))
            .await
            .map_err(verbs::Error::from)
    };
    match &line.command {
        Command::Render(args) => offline::render(args, stdin),
        Command::Validate(args) => offline::validate(args, stdin),
        Command::Get(args) if args.watch => Box::pin(verbs::watch::watch(args, &line.client)).await,
        Command::Get(args) => look::get(args, &line.client, stdin).await,
        Command::Status(args) => look::status(args, &line.client, &mut Terminal { stdin }, look).await,
        Command::Events(args) => look::events(args, &line.client, stdin).await,
        Command::Top(args) => top::top(args, &connect().await?).await,
        Command::Usage(args) => verbs::usage::usage(args, &connect().await?).await,
        Command::Route(args) => Box::pin(verbs::route::route(args, &line.client, &connect().await?)).await,
        Command::Endpoint(args) => explain::endpoint(args, &line.client, stdin).await,
        Command::Logs(args) => {
            let cluster = follow().await?;
            Ok(Box::pin(logs::logs(args, &cluster, &mut Terminal { stdin })).await?)
        }
        Command::Chat(args) => {
            let cluster = follow().await?;
            let look = Look {
                terminal: io::stderr().is_terminal() && !line.no_color,
            };
            Ok(chat::chat(args, &cluster, &mut Terminal { stdin }, look).await?)
        }
        Command::Proxy(args) => Ok(verbs::proxy::proxy(args, &follow().await?, &mut Terminal { stdin }).await?),
        Command::Deploy(args) => Box::pin(deploy::deploy(args, &line.client, &mut Terminal { stdin })).await,
        Command::Pause(args) | Command::Resume(args) => {
            let pause = matches!(line.command, Command::Pause(_));
            let cluster = connect().await?;
            Ok(change::pause(args, pause, &cluster, &mut Terminal { stdin }).await?)
        }
        Command::Scale(args) => Ok(change::scale(args, &connect().await?, &mut Terminal { stdin }).await?),
        Command::Edit(args) => Ok(verbs::edit::edit(args, &connect().await?, &mut Terminal { stdin }).await?),
        Command::Delete(args) => {
            let cluster = Cluster::connect_patiently(&line.client)
                .await
                .map_err(verbs::Error::from)?;
            Ok(change::delete(args, &cluster, &mut Terminal { stdin }).await?)
        }
        Command::Why(args) => explain::why(args, &line.client, stdin, look).await,
        Command::Tree(args) => explain::tree(args, &line.client, stdin, look).await,
        Command::Diff(args) => verbs::diff::diff(args, &line.client, stdin).await,
        Command::Migrate(args) => {
            let cluster = connect().await?;
            Ok(Box::pin(migrate::migrate(args, &cluster, &mut Terminal { stdin })).await?)
        }
        Command::Rollout(command) => {
            let cluster = connect().await?;
            Box::pin(verbs::rollout::rollout(command, &cluster, &mut Terminal { stdin })).await
        }
        Command::Check(args) => Box::pin(check::check(args, &line.client, &mut Terminal { stdin }, look)).await,
        Command::SupportBundle(args) => support_bundle::support_bundle(args, &line.client).await,
        Command::Asya(AsyaSubcommand::Install(args)) => {
            install_operator(manifests::asya(), args, &line.client, stdin).await
        }
        Command::Asya(AsyaSubcommand::Uninstall(args)) => {
            uninstall_operator(&manifests::asya(), Kind::AsyncActor, args, &line.client, stdin).await
        }
        Command::Asya(AsyaSubcommand::Gateway(command)) => {
            let cluster = follow().await?;
            verbs::asya::asya(command, &line.client, &cluster, &mut Terminal { stdin }).await
        }
        Command::Controller(command) => Box::pin(run_controller(command, &line.client, stdin)).await,
        Command::Provider(command) => Box::pin(run_provider(command, &line.client, stdin)).await,
        Command::Console(command) => Box::pin(run_console(command, &line.client, stdin)).await,
        Command::LlamaStack(LlamaStackCommand::Install(args)) => {
            install_operator(manifests::llama_stack(), args, &line.client, stdin).await
        }
        Command::LlamaStack(LlamaStackCommand::Uninstall(args)) => {
            let kind = Kind::LlamaStackDistribution;
            uninstall_operator(&manifests::llama_stack(), kind, args, &line.client, stdin).await
        }
        Command::LlamaStack(LlamaStackCommand::Provider(command)) => match command {
            KitCommand::New(args) => kit::new(args),
            KitCommand::Build(args) => kit::build(args),
            KitCommand::Check(args) => kit::check(args),
            KitCommand::Try(args) => kit::serve(args).await,
        },
        Command::Completion(args) => Ok(Answer {
            data: complete::script(args.shell)?,
            ..Answer::default()
        }),
        Command::Version(args) => version::version(args, &line.client).await,
        Command::Ui(args) => Ok(ui::run(args, &line.client).await?),
    }
}

async fn run_controller(
    command: &ControllerCommand,
    client: &ClientArgs,
    stdin: &mut dyn Read,
) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let terminal = &mut Terminal { stdin };
    Ok(match command {
        ControllerCommand::Install(args) => apply::install(args, &cluster, terminal).await?,
        ControllerCommand::Upgrade(args) => apply::upgrade(args, &cluster, terminal).await?,
        ControllerCommand::Uninstall(args) => remove::controller(args, &cluster, terminal).await?,
        ControllerCommand::Status => report::status(&cluster, terminal).await?,
    })
}

async fn run_provider(command: &ProviderCommand, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let terminal = &mut Terminal { stdin };
    Ok(match command {
        ProviderCommand::Install(args) => apply::install_provider(args, &cluster, terminal).await?,
        ProviderCommand::Uninstall(args) => remove::provider(args, &cluster, terminal).await?,
        ProviderCommand::List => report::providers(&cluster, terminal).await?,
    })
}

async fn install_operator(
    component: Component,
    args: &InstallArgs,
    client: &ClientArgs,
    stdin: &mut dyn Read,
) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    Ok(apply::install_operator(component, args, &cluster, &mut Terminal { stdin }).await?)
}

async fn uninstall_operator(
    component: &Component,
    kind: Kind,
    args: &RemoveArgs,
    client: &ClientArgs,
    stdin: &mut dyn Read,
) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    Ok(remove::operator(component, kind, args, &cluster, &mut Terminal { stdin }).await?)
}

async fn run_console(command: &ConsoleCommand, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let settings = match command {
        ConsoleCommand::Install(args) => settings(args)?,
        ConsoleCommand::Uninstall(_) => Vec::new(),
    };
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let terminal = &mut Terminal { stdin };
    Ok(match command {
        ConsoleCommand::Install(args) => apply::install_console(args, &settings, &cluster, terminal).await?,
        ConsoleCommand::Uninstall(args) => remove::web_console(args, &cluster, terminal).await?,
    })
}

/// Settings of a console, checked by the parser that reads them in the cluster.
fn settings(args: &ConsoleInstallArgs) -> Result<Vec<String>, Error> {
    let settings = args.settings();
    let component = console::console(&settings);
    let words = [console::PROGRAM.to_owned()].into_iter().chain(component.args);
    match CommandLine::try_parse_from(words) {
        Ok(_) => Ok(settings),
        Err(error) => Err(install::Error::Settings(error.render().to_string().trim().to_owned()).into()),
    }
}
